#!/usr/bin/env python3
"""A trainer that serves TrainerControl, made from the .proto files alone, for e2e.TestPythonTrainerIsStopped.

Usage: controlled_trainer.py MASTER DATA

It joins with its port, hangs on its second task until StopTask names this task, and then trains until the job ends. Its heartbeats list no
tasks, so the stop must come to its port. A second trainer without a session takes the other tasks.
"""

import concurrent.futures
import hashlib
import sys
import threading

import grpc

from trainmaster.v1 import coordinator_pb2 as pb
from trainmaster.v1 import coordinator_pb2_grpc as coordinator_grpc
from trainmaster.v1 import trainer_control_pb2 as control_pb
from trainmaster.v1 import trainer_control_pb2_grpc as control_grpc

MODEL = b"model" * 500_000  # several messages


class Control(control_grpc.TrainerControlServicer):
    def __init__(self):
        self.lock = threading.Condition()
        self.running, self.stopped, self.iteration = 0, set(), 0

    def StopTask(self, request, context):
        with self.lock:
            self.stopped.add(request.task_id or self.running)
            self.lock.notify_all()
        return control_pb.StopTaskReply()

    def GetProgress(self, request, context):
        with self.lock:
            return control_pb.Progress(epoch=1, iteration=self.iteration, task_id=self.running)

    def GetModel(self, request, context):
        for at in range(0, len(MODEL), 1 << 20):
            yield control_pb.Model(trainer_id=1, model_id=7, content=MODEL[at:at + (1 << 20)])
        yield control_pb.Model(trainer_id=1, model_id=7, digest=hashlib.sha256(MODEL).digest())


def say(*words):
    print(*words, flush=True)


def plain(master, leave):
    """Trains all tasks that it gets, without a session, on a connection of its own."""
    with grpc.insecure_channel(master, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = coordinator_grpc.CoordinatorStub(channel)
        while not leave.is_set():
            task = stub.GetTask(pb.TrainerInfo(trainer_id=1), timeout=30)
            if task.HasField("end"):
                return
            if task.HasField("training_task"):
                leave.wait(0.02)
                stub.PushResult(pb.TaskResult(task_id=task.task_id), timeout=30)


def main():
    master, data = sys.argv[1:]
    control = Control()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    control_grpc.add_TrainerControlServicer_to_server(control, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stub = coordinator_grpc.CoordinatorStub(grpc.insecure_channel(master))
    stub.ReportDataset(pb.ReportDatasetRequest(paths=[data]), timeout=30)
    for address in ("169.254.169.254:80", "localhost:2379", "10.0.0.1:22", ":0"):
        try:
            stub.Join(pb.JoinRequest(id="python", control_address=address), timeout=30)
            sys.exit(f"joined with the address {address}")
        except grpc.RpcError as error:
            say("refused", address, error.code().name, error.details())
    joined = stub.Join(pb.JoinRequest(id="python", control_address=f":{port}"), timeout=30)
    say("port", port)
    leave = threading.Event()
    other = threading.Thread(target=plain, args=(master, leave))

    def beat():
        while not leave.wait(0.3):
            stub.Heartbeat(pb.HeartbeatRequest(session=joined.session), timeout=30)

    heart = threading.Thread(target=beat)
    heart.start()
    seq, ask = 0, True

    def request(*held):
        nonlocal seq
        seq += 1
        return pb.Request(session=joined.session, job_id=joined.job_id, seq=seq, ack=seq, held=held)

    for number in range(1, 1 << 30):
        task = stub.GetTask(pb.TrainerInfo(request=request()), timeout=30)
        if task.HasField("end"):
            break
        if not task.HasField("training_task"):
            continue
        with control.lock:
            control.running, control.iteration = task.task_id, control.iteration + 1
        if number == 1:
            other.start()
        elif number == 2:
            say("hangs", task.task_id)
            with control.lock:
                control.lock.wait_for(lambda: control.stopped)
                say("stopped", *control.stopped)
            continue
        if task.task_id in control.stopped:
            say("stopped a newer task", task.task_id)
        stub.PushResult(pb.TaskResult(token=task.token, request=request()), timeout=30)
    say("end", pb.EndTaskSpec.Reason.Name(task.end.reason))
    leave.set()
    other.join()
    heart.join()
    server.stop(None)


main()
