#!/usr/bin/env python3
"""Calls every method of the services for trainers, for e2e.TestPythonCallsEveryMethod.

Usage: every_method.py LEADER STANDBY EXPLICIT SYNCHRONOUS DATA

The stubs are from the .proto files alone. The methods are those of the descriptors: a method without a successful call is an error, which
names it.
"""

import concurrent.futures
import hashlib
import math
import queue
import sys
import threading

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from trainmaster.v1 import admin_pb2, admin_pb2_grpc
from trainmaster.v1 import coordinator_pb2 as pb
from trainmaster.v1 import coordinator_pb2_grpc, data_pb2, data_proxy_pb2, data_proxy_pb2_grpc, trainer_control_pb2, trainer_control_pb2_grpc

LEADER, STANDBY, EXPLICIT, SYNCHRONOUS, DATA = sys.argv[1:]
KINDS = [data_pb2.TASK_KIND_TRAINING, data_pb2.TASK_KIND_EVALUATION]
COUNTED, STALE = pb.PushResultResponse.STATUS_COUNTED, pb.PushResultResponse.STATUS_STALE
TIMEOUT = 60
MODEL = b"model" * 500_000  # several messages

called = set()  # methods with a successful call, as /package.Service/Method


class Recorder(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Notes the methods that a server has answered."""

    def intercept_unary_unary(self, proceed, details, request):
        reply = proceed(details, request)
        if reply.code() == grpc.StatusCode.OK:
            called.add(details.method)
        return reply

    def messages(self, proceed, details, request):
        for reply in proceed(details, request):
            called.add(details.method)
            yield reply

    intercept_unary_stream = intercept_stream_stream = messages


def connect(address):
    # A connection of its own: a trainer without a session belongs to its connection.
    return grpc.intercept_channel(grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]), Recorder())


def want(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: found {found!r}, expected {expected!r}")


def refused(code, reason, call, *args):
    """Makes a call that must fail, and returns the text of the error and its details by type."""
    try:
        reply = call(*args, timeout=TIMEOUT)
        if hasattr(reply, "__next__"):
            next(reply)
    except grpc.RpcError as error:
        want(error.details(), error.code(), code)
        details = {}
        status = rpc_status.from_call(error)
        for packed in status.details if status else []:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest):
                if packed.Is(kind.DESCRIPTOR):
                    details[kind] = kind()
                    packed.Unpack(details[kind])
        if reason:
            want(error.details(), details[error_details_pb2.ErrorInfo].reason, reason)
        return error.details(), details
    raise AssertionError(f"expected {code}, found {reply}")


class Trainer:
    """A trainer that has joined."""

    def __init__(self, stub, name, **join):
        self.stub, self.seq = stub, 0
        self.joined = stub.Join(pb.JoinRequest(id=name, **join), timeout=TIMEOUT)
        self.session, self.epoch = self.joined.session, 0
        assert self.session.ordinal > 0 and self.session.incarnation > 0 and self.joined.session_ttl > 0 and len(self.joined.job_id) == 16, self.joined

    def request(self, *held):
        self.seq += 1
        return pb.Request(session=self.session, job_id=self.joined.job_id, seq=self.seq, ack=self.seq, held=held, epoch=self.epoch)

    def get(self, *held):
        return self.stub.GetTask(pb.TrainerInfo(request=self.request(*held)), timeout=TIMEOUT)

    def push(self, task, **result):
        return self.stub.PushResult(pb.TaskResult(token=task.token, request=self.request(), ask=pb.TrainerInfo(), **result), timeout=TIMEOUT)

    def heartbeat(self, *held):
        return self.stub.Heartbeat(pb.HeartbeatRequest(session=self.session, held=held), timeout=TIMEOUT)

    def leave(self):
        self.stub.Leave(pb.LeaveRequest(session=self.session), timeout=TIMEOUT)


class Control(trainer_control_pb2_grpc.TrainerControlServicer):
    """The master calls StopTask, GetProgress and EvaluateCurrentModel."""

    def __init__(self):
        self.iteration, self.running = 0, 0
        self.asked, self.stopped, self.evaluations = threading.Event(), queue.SimpleQueue(), queue.SimpleQueue()

    def by_master(self, context, method):
        agent = dict(context.invocation_metadata())["user-agent"]
        assert agent.startswith("grpc-go/"), agent
        called.add(f"/trainmaster.v1.TrainerControl/{method}")

    def StopTask(self, request, context):
        self.by_master(context, "StopTask")
        self.stopped.put(request)
        return trainer_control_pb2.StopTaskReply()

    def GetProgress(self, request, context):
        self.by_master(context, "GetProgress")
        self.iteration += 1
        self.asked.set()
        return trainer_control_pb2.Progress(epoch=1, iteration=self.iteration, task_id=self.running)

    def EvaluateCurrentModel(self, request, context):
        self.by_master(context, "EvaluateCurrentModel")
        self.evaluations.put(request)
        return trainer_control_pb2.EvaluateCurrentModelReply()

    def GetModel(self, request, context):
        for at in range(0, len(MODEL), 1 << 20):
            yield trainer_control_pb2.Model(trainer_id=1, model_id=7, content=MODEL[at:at + (1 << 20)])
        yield trainer_control_pb2.Model(trainer_id=1, model_id=7, digest=hashlib.sha256(MODEL).digest())


def records(proxy, spec, start=0):
    """Reads the records of a task from a data proxy."""
    stream = proxy.CreateStream(data_proxy_pb2.CreateStreamRequest(spec=spec.stream.files), timeout=TIMEOUT).stream_id
    batches = proxy.ReadData(data_proxy_pb2.DataBatchRequest(stream_id=stream, start_record=start, batch_size=7), timeout=TIMEOUT)
    return [record.data for batch in batches for record in batch.batch]


def finish(stub, task, **result):
    """Reports the result of a trainer without a session, and asks for the next task."""
    return stub.PushResult(pb.TaskResult(task_id=task.task_id, ask=pb.TrainerInfo(trainer_id=1, accepts=KINDS), **result), timeout=TIMEOUT)


def bad_input(stub, task):
    """Each refusal names its reason, and changes nothing: the task is still dispatched."""
    push = stub.PushResult
    want("unknown task", push(pb.TaskResult(task_id=task.task_id ^ 1 << 40), timeout=TIMEOUT).status, STALE)
    for field, result in {
        "loss": {"loss": math.nan}, "accuracy": {"accuracy": math.inf}, "stat.seconds": {"stat": pb.RunStats(seconds=math.nan)},
        "stat.records": {"stat": pb.RunStats(records=-1)}, "model_path": {"model_path": "/" * 1025},
        "metrics[perplexity]": {"metrics": [pb.Metric(name="perplexity", mean=pb.Mean(sum=math.nan, count=1))]},
    }.items():
        _, details = refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", push, pb.TaskResult(task_id=task.task_id, **result))
        want("field", details[error_details_pb2.BadRequest].field_violations[0].field, field)
    refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", push, pb.TaskResult())
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, None, push, pb.TaskResult(task_id=task.task_id, error="x" * (5 << 20)))
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, None, stub.ReportDataset, pb.ReportDatasetRequest(paths=["/" + "x" * (5 << 20)]))
    refused(grpc.StatusCode.ALREADY_EXISTS, "OTHER_DATASET", stub.ReportDataset, pb.ReportDatasetRequest(paths=[DATA.replace("0*", "00000*")]))
    want("task after refusals", stub.GetTask(pb.TrainerInfo(trainer_id=1), timeout=TIMEOUT).task_id, task.task_id)


def work(stub, task):
    """Trains tasks on a stream, beginning with a dispatched one, and returns the next task."""
    requests = queue.SimpleQueue()
    replies = stub.Work(iter(requests.get, None), timeout=TIMEOUT)

    def ask(number, **call):
        requests.put(pb.WorkRequest(id=number, **call))
        reply = next(replies)
        want("number of the answer", reply.id, number)
        return reply

    info = pb.TrainerInfo(trainer_id=1)
    want("repeated task", ask(1, get_task=info).task.task_id, task.task_id)
    error = ask(2, push_result=pb.TaskResult(task_id=task.task_id, stat=pb.RunStats(seconds=math.nan))).error
    want("error on a stream", (error.code, error.reason, error.field), (3, "BAD_ARGUMENT", "stat.seconds"))
    for number in range(3, 6):
        result = ask(number, push_result=pb.TaskResult(task_id=task.task_id, ask=info)).result
        want("result", result.status, COUNTED)
        assert result.next.HasField("training_task") and result.next.task_id != task.task_id, result
        task = result.next
    requests.put(None)
    want("answers after the end of the requests", list(replies), [])
    return task


def controlled(stub, admin):
    """The master queries and stops a trainer with a port, and stops one without a port by its heartbeat."""
    control = Control()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    trainer_control_pb2_grpc.add_TrainerControlServicer_to_server(control, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    trainer = Trainer(stub, "controlled", control_address=f":{port}")
    task = trainer.get()
    control.running = task.task_id
    assert control.asked.wait(TIMEOUT), "no call of GetProgress"
    stop = admin.StopTasks(admin_pb2.StopTasksRequest(trainer="controlled"), timeout=TIMEOUT)
    want("stopped tasks", list(stop.task_ids), [task.task_id])
    request = control.stopped.get(timeout=TIMEOUT)
    want("task of StopTask", (request.task_id, request.token), (task.task_id, task.token))
    admin.Evaluate(admin_pb2.EvaluateRequest(trainer="controlled"), timeout=TIMEOUT)
    for _ in range(2):
        task = control.evaluations.get(timeout=TIMEOUT)
        assert task.HasField("evaluation_spec") and not task.evaluation_spec.HasField("model"), task
        metric = pb.Metric(name="accuracy", mean=pb.Mean(sum=1, count=2))
        want("result", stub.PushResult(pb.TaskResult(task_id=task.task_id, metrics=[metric]), timeout=TIMEOUT).status, COUNTED)
    parts = list(trainer_control_pb2_grpc.TrainerControlStub(connect(f"127.0.0.1:{port}")).GetModel(trainer_control_pb2.GetModelRequest(), timeout=TIMEOUT))
    want("digest of the model", parts[-1].digest, hashlib.sha256(b"".join(part.content for part in parts)).digest())
    trainer.leave()
    server.stop(None)

    trainer = Trainer(stub, "without-port")
    task = trainer.get()
    want("commands", list(trainer.heartbeat(task.token).commands), [])
    admin.StopTasks(admin_pb2.StopTasksRequest(trainer="without-port"), timeout=TIMEOUT)
    commands = trainer.heartbeat(task.token).commands
    want("tasks to stop", [command.stop_task.task_id for command in commands], [task.task_id])
    trainer.leave()


def sessions(stub):
    first, second = Trainer(stub, "first"), Trainer(stub, "second")
    elected = [stub.SaveModel(pb.SaveModelRequest(session=t.session), timeout=TIMEOUT).elected for t in (first, second, first)]
    want("elected trainers", elected, [True, False, True])
    task = first.get()
    want("draining", first.heartbeat(task.token).draining, False)
    first.leave()
    again = second.get()  # the task that has returned comes first
    want("task of a trainer that left", (again.index, again.token.attempt), (task.index, task.token.attempt + 1))
    reply = second.push(again)
    want("result", reply.status, COUNTED)
    newer = Trainer(stub, "second")
    refused(grpc.StatusCode.FAILED_PRECONDITION, "REJOIN", stub.Heartbeat, pb.HeartbeatRequest(session=second.session))
    newer.leave()
    refused(grpc.StatusCode.FAILED_PRECONDITION, "NOT_EXPLICIT", stub.LastStep, pb.LastStepRequest(session=newer.session))


def plain_job():
    """A whole job with an evaluation round, mostly without a session."""
    channel = connect(LEADER)
    stub, admin, proxy = coordinator_pb2_grpc.CoordinatorStub(channel), admin_pb2_grpc.AdminStub(channel), data_proxy_pb2_grpc.DataProxyStub(channel)
    text, details = refused(grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", coordinator_pb2_grpc.CoordinatorStub(connect(STANDBY)).GetTask, pb.TrainerInfo())
    want("leader", details[error_details_pb2.ErrorInfo].metadata["leader"], LEADER)
    assert 0 < details[error_details_pb2.RetryInfo].retry_delay.ToTimedelta().total_seconds() <= 1, details

    refused(grpc.StatusCode.INVALID_ARGUMENT, None, stub.ReportDataset, pb.ReportDatasetRequest(paths=["/etc/passwd"]))
    for _ in range(2):  # a repetition succeeds
        stub.ReportDataset(pb.ReportDatasetRequest(paths=[DATA]), timeout=TIMEOUT)
    task = stub.GetTask(pb.TrainerInfo(trainer_id=1), timeout=TIMEOUT)
    spec = task.training_task.data
    want("data proxy", spec.stream.data_proxy_location, LEADER)
    whole, number = records(proxy, spec), sum(file.num_record for file in spec.stream.files.files)
    want("number of records", len(whole), number)
    want("records from 5", records(proxy, spec, 5), whole[5:])
    refused(grpc.StatusCode.NOT_FOUND, "STREAM_GONE", proxy.ReadData, data_proxy_pb2.DataBatchRequest(stream_id=1, batch_size=1))
    bad_input(stub, task)
    reply = finish(stub, task, loss=0.5, stat=pb.RunStats(records=number))
    want("result", reply.status, COUNTED)
    want("repeated result", stub.PushResult(pb.TaskResult(task_id=task.task_id), timeout=TIMEOUT).status, pb.PushResultResponse.STATUS_ALREADY_COUNTED)
    returned = stub.PushResult(pb.TaskResult(task_id=reply.next.task_id, error="no memory"), timeout=TIMEOUT)
    want("failed task", returned.status, pb.PushResultResponse.STATUS_RETURNED)
    controlled(stub, admin)
    sessions(stub)
    task = work(stub, stub.GetTask(pb.TrainerInfo(trainer_id=1), timeout=TIMEOUT))
    evaluated = 0
    while not task.HasField("end"):
        if task.HasField("evaluation_spec"):
            model = task.evaluation_spec.model.model_path
            want("model", model, "/models/7")
            evaluated += 1
            reply = finish(stub, task, metrics=[pb.Metric(name="accuracy", mean=pb.Mean(sum=10, count=20))])
        elif task.HasField("training_task"):
            reply = finish(stub, task, model_id=7, model_path="/models/7")
        else:
            reply = pb.PushResultResponse(status=COUNTED, next=stub.GetTask(pb.TrainerInfo(trainer_id=1, accepts=KINDS), timeout=TIMEOUT))
        want("result", reply.status, COUNTED)
        task = reply.next
    want("end", task.end.reason, pb.EndTaskSpec.REASON_PASSES_DONE)
    assert evaluated > 0, "no evaluation task"


def explicit_job():
    """A job in which tasks count with the commit of a step: a commit, a rollback, and commits up to the end."""
    stub = coordinator_pb2_grpc.CoordinatorStub(connect(EXPLICIT))
    trainer = Trainer(stub, "explicit")
    assert trainer.joined.explicit_commits and not trainer.joined.cuts, trainer.joined
    stub.ReportDataset(pb.ReportDatasetRequest(paths=[DATA]), timeout=TIMEOUT)

    def load():
        place = stub.LastStep(pb.LastStepRequest(session=trainer.session), timeout=TIMEOUT)
        trainer.epoch = place.epoch
        return place

    def save(step, *positions):
        flushed = stub.Flushed(pb.FlushedRequest(session=trainer.session, generation=place.generation, step=step, positions=positions), timeout=TIMEOUT)
        want("flushed", flushed.done, True)
        committed = stub.Commit(pb.StepRequest(session=trainer.session, generation=place.generation, step=step), timeout=TIMEOUT)
        want("committed", (committed.done, committed.step), (True, step))
        return committed

    place = load()
    want("first step", place.step, 0)
    reply = trainer.push(trainer.get(), step=1)
    want("result", reply.status, COUNTED)
    held = reply.next
    want("tasks without a commit", save(1, pb.TaskPosition(token=held.token, records=5)).uncommitted, 0)
    trainer.push(held, step=2)  # step 2 is lost
    rolled = stub.Rollback(pb.StepRequest(session=trainer.session, generation=place.generation + 1, step=1), timeout=TIMEOUT)
    want("rollback", (rolled.done, rolled.step, rolled.generation, rolled.epoch), (True, 1, place.generation + 1, place.epoch + 1))
    place = load()
    task, step, bases = trainer.get(), 1, set()
    while not task.HasField("end"):
        if task.HasField("training_task"):
            bases.add(task.base)
            step += 1
            task = trainer.push(task, step=step).next
        else:
            want("reason to wait", task.wait.reason, pb.WaitTaskSpec.REASON_COMMIT)
            save(step)
            task = trainer.get()
    want("first records of tasks after the rollback", bases, {0, 5})
    want("end", task.end.reason, pb.EndTaskSpec.REASON_PASSES_DONE)
    trainer.leave()


def synchronous_job():
    """A trainer without a task in a job that another trainer trains: its late gradients, and a cut."""
    stub = coordinator_pb2_grpc.CoordinatorStub(connect(SYNCHRONOUS))
    trainer = Trainer(stub, "synchronous")
    assert trainer.joined.synchronous and trainer.joined.cuts, trainer.joined

    def staged(version):  # 0 records: the gradients were late
        return stub.Staged(pb.StagedRequest(session=trainer.session, version=version), timeout=TIMEOUT)

    version = staged(0).committed
    while (reply := staged(version)).committed == version:
        pass  # 10 s have passed, or a cut is in progress
    want("late gradients", (reply.committed > version, reply.included), (True, False))
    refused(grpc.StatusCode.FAILED_PRECONDITION, "TRAINER_AHEAD", stub.Staged, pb.StagedRequest(session=trainer.session, version=reply.committed + 1_000_000))
    while not (place := stub.LastStep(pb.LastStepRequest(session=trainer.session), timeout=TIMEOUT)).done:
        pass
    while not (cut := stub.CutWatch(pb.CutWatchRequest(session=trainer.session), timeout=TIMEOUT)).done:
        pass
    assert cut.round > place.round or place.round == 0, (cut, place)
    flushed = pb.FlushedRequest(session=trainer.session, generation=cut.generation, step=cut.round)
    while not stub.Flushed(flushed, timeout=TIMEOUT).done:
        pass
    trainer.leave()


def methods():
    files = (pb.DESCRIPTOR, trainer_control_pb2.DESCRIPTOR, data_proxy_pb2.DESCRIPTOR)
    return {f"/{service.full_name}/{method.name}" for file in files for service in file.services_by_name.values() for method in service.methods}


def main():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for job in [pool.submit(job) for job in (plain_job, explicit_job, synchronous_job)]:
            job.result()
    if missing := methods() - called:
        sys.exit(f"methods without a call: {', '.join(sorted(missing))}: call them in {sys.argv[0]}")
    print(f"{len(methods())} methods")


main()
