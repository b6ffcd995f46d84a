#!/usr/bin/env python3
"""A trainer in Python with a session: it trains, evaluates, and serves TrainerControl.

It prints each event: asked, streamed, trained, pushed, evaluated, queried and stopped.
"""

import argparse
import concurrent.futures
import hashlib
import io
import pathlib
import sys
import threading
import time

import grpc
import numpy

from client import Data, Model, call, connect
from trainmaster.v1 import coordinator_pb2 as pb, data_pb2, trainer_control_pb2, trainer_control_pb2_grpc

ACCEPTS = [data_pb2.TASK_KIND_TRAINING, data_pb2.TASK_KIND_EVALUATION]
MESSAGE = 1 << 20  # largest content of a message of GetModel


def say(event, *words):
    # In one piece: the threads of the control service print, too.
    print(" ".join([f"{event:10}", *map(str, words)]) + "\n", end="", flush=True)


class Session:
    """A trainer that has joined. Its session survives its connections and the leader, and lasts as long as its heartbeats."""

    def __init__(self, coordinator, name, port, stop):
        self.coordinator, self.stop, self.seq, self.held = coordinator, stop, 0, []
        self.joined = call(coordinator.Join, pb.JoinRequest(id=name, control_address=f":{port}"))
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while True:
            time.sleep(self.joined.session_ttl / 5)
            reply = call(self.coordinator.Heartbeat, pb.HeartbeatRequest(session=self.joined.session, held=self.held))
            for command in reply.commands:  # of a master that has not reached the port
                if command.HasField("stop_task"):  # the default of stop_task has the task 0: whatever runs
                    self.stop(command.stop_task, None)

    def request(self):
        """Returns the next request. Between two tasks, the trainer holds none."""
        self.seq, self.held = self.seq + 1, []
        return pb.Request(session=self.joined.session, job_id=self.joined.job_id, seq=self.seq, ack=self.seq)

    def get(self):
        task = call(self.coordinator.GetTask, pb.TrainerInfo(request=self.request(), accepts=ACCEPTS))
        self.held = [task.token]
        return task

    def push(self, result):
        """Reports a result, and returns its status and the next task."""
        result.request.CopyFrom(self.request())
        result.ask.accepts.extend(ACCEPTS)
        reply = call(self.coordinator.PushResult, result)
        self.held = [reply.next.token]
        return pb.PushResultResponse.Status.Name(reply.status).removeprefix("STATUS_"), reply.next


class Trainer(trainer_control_pb2_grpc.TrainerControlServicer):
    """Trains and evaluates tasks, and answers the master and other trainers meanwhile."""

    def __init__(self, data, model, directory):
        self.data, self.model, self.directory = data, model, directory
        self.lock = threading.Lock()  # of the model and the fields below
        self.task_id, self.epoch, self.iteration, self.give_up = 0, 0, 0, False

    # The calls of TrainerControl

    def StopTask(self, request, context):
        with self.lock:
            if request.task_id in (0, self.task_id):  # 0: whatever runs. A stop of another task comes too late
                self.give_up = True
        return trainer_control_pb2.StopTaskReply()

    def GetProgress(self, request, context):
        with self.lock:
            progress = trainer_control_pb2.Progress(epoch=self.epoch, iteration=self.iteration, task_id=self.task_id)
        say("queried", f"GetProgress: iteration {progress.iteration} in task {progress.task_id}")
        return progress

    def GetModel(self, request, context):
        content, version = self.saved()
        say("queried", f"GetModel: version {version}, {len(content)} bytes")
        for at in range(0, len(content), MESSAGE):
            yield trainer_control_pb2.Model(model_id=version, content=content[at:at + MESSAGE])
        yield trainer_control_pb2.Model(model_id=version, digest=hashlib.sha256(content).digest())

    # The work

    def saved(self):
        """Returns the bytes of the model, and its version."""
        with self.lock:
            out, version = io.BytesIO(), self.iteration
            numpy.save(out, self.model.weights)
        return out.getvalue(), version

    def train(self, task, until_stopped):
        """Trains a task, and returns its result; None: a StopTask has ended it."""
        with self.lock:
            self.task_id, self.epoch, self.give_up = task.task_id, getattr(task.token, "pass"), False
        records = self.records(task.training_task.data)
        losses = []
        while not losses or until_stopped:
            losses = []
            for record in records:
                with self.lock:
                    if self.give_up:
                        say("stopped", f"task {task.task_id} at iteration {self.iteration}")
                        return None
                    losses.append(self.model.train(record))
                    self.iteration += 1
                if until_stopped:
                    time.sleep(0.001)  # leaves the processor to the others
        result = pb.TaskResult(token=task.token, loss=float(numpy.mean(losses)))
        result.stat.records = len(records)
        content, result.model_id = self.saved()
        path = self.directory / f"{result.model_id}.npy"
        path.write_bytes(content)
        result.model_path = str(path)
        say("trained", f"{len(records)} records, loss {result.loss:.4f}, model {path.name}")
        return result

    def evaluate(self, task):
        """Evaluates the model that an evaluation task names, and returns the result."""
        path = pathlib.Path(task.evaluation_spec.model.model_path)
        model = Model(0)
        model.weights = numpy.load(path)
        records = self.records(task.evaluation_spec.data)
        loss, correct = model.evaluate(records)
        say("evaluated", f"model {path.name} of round {task.evaluation_spec.round}: {correct} of {len(records)} correct")
        return pb.TaskResult(token=task.token, metrics=[
            pb.Metric(name="loss", mean=pb.Mean(sum=loss, count=len(records))),
            pb.Metric(name="accuracy", mean=pb.Mean(sum=correct, count=len(records)))])

    def records(self, spec):
        records = self.data.records(spec)
        say("streamed", f"{len(records)} records from {spec.stream.data_proxy_location}")
        return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", default="127.0.0.1:8080", help="addresses of all masters, separated by commas")
    parser.add_argument("--data", nargs="+", required=True, help="files of the dataset: paths or globs on the machine of the master")
    parser.add_argument("--models", type=pathlib.Path, required=True, help="directory for the models, which all trainers can read")
    parser.add_argument("--name", default="python-1", help="name of this trainer in the job")
    parser.add_argument("--control-listen", default="127.0.0.1:0", help="address of TrainerControl, on the host of the connection to the master")
    parser.add_argument("--long-task", type=int, default=0, help="number of a task that is trained until it is stopped; 0: none")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)

    trainer = Trainer(Data(), Model(args.learning_rate), args.models)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    trainer_control_pb2_grpc.add_TrainerControlServicer_to_server(trainer, server)
    port = server.add_insecure_port(args.control_listen)
    server.start()

    coordinator = connect(args.masters)
    call(coordinator.ReportDataset, pb.ReportDatasetRequest(paths=args.data))
    session = Session(coordinator, args.name, port, trainer.StopTask)
    say("joined", f"as {args.name}, control port {port}")
    task, trained = session.get(), 0
    while not task.HasField("end"):
        result = None
        if task.HasField("training_task"):
            trained += 1
            say("asked", f"training task {task.task_id}")
            result = trainer.train(task, until_stopped=trained == args.long_task)
        elif task.HasField("evaluation_spec"):
            say("asked", f"evaluation task {task.task_id}")
            result = trainer.evaluate(task)
        if result is None:  # no task yet, or a stopped one, about which nothing is reported
            task = session.get()
            continue
        status, task = session.push(result)
        say("pushed", status)
    say("ended", pb.EndTaskSpec.Reason.Name(task.end.reason), task.end.text)
    call(coordinator.Leave, pb.LeaveRequest(session=session.joined.session))
    server.stop(None)
    return 0 if task.end.reason == pb.EndTaskSpec.REASON_PASSES_DONE else 1


if __name__ == "__main__":
    sys.exit(main())
