#!/usr/bin/env python3
"""Three trainers that evaluate their own models on command, made from the .proto files alone, for e2e.TestPythonTrainersEvaluateTheirModels.

Usage: evaluating_trainer.py MASTER DATA

The trainer "port" serves TrainerControl. The trainer "heartbeat" takes the task with its heartbeats. Both hold their first training task until
they have evaluated. The trainer "request" takes the task with its next request. The loss of a model is 1, 2 or 3.
"""

import concurrent.futures
import sys
import threading

import grpc

from trainmaster.v1 import coordinator_pb2 as pb
from trainmaster.v1 import coordinator_pb2_grpc as coordinator_grpc
from trainmaster.v1 import data_pb2 as data_pb
from trainmaster.v1 import trainer_control_pb2 as control_pb
from trainmaster.v1 import trainer_control_pb2_grpc as control_grpc

LOSSES = {"port": 1, "heartbeat": 2, "request": 3}
output = threading.Lock()


def say(*words):
    with output:
        print(*words, flush=True)


class Trainer(control_grpc.TrainerControlServicer):
    def __init__(self, name, stub):
        self.name, self.stub, self.seq = name, stub, 0
        self.lock, self.done, self.tasks = threading.Lock(), threading.Event(), set()
        self.soon = False
        self.evaluated = threading.Event()

    def metrics(self, task):
        records = sum(f.num_record for f in task.evaluation_spec.data.files.files)
        return [pb.Metric(name="loss", mean=pb.Mean(sum=LOSSES[self.name] * records, count=records))]

    def evaluate(self, task):
        """Evaluates a task once, and reports its result outside the order of the requests."""
        with self.lock:
            if task.task_id in self.tasks:
                return
            self.tasks.add(task.task_id)
        result = pb.TaskResult(task_id=task.task_id, metrics=self.metrics(task))
        for status in ("STATUS_COUNTED", "STATUS_ALREADY_COUNTED"):  # a repetition changes nothing
            found = pb.PushResultResponse.Status.Name(self.stub.PushResult(result, timeout=30).status)
            if found != status:
                say("wrong status", found, "expected", status)
        say("evaluated", self.name, task.evaluation_spec.round, task.evaluation_spec.HasField("model"))
        self.evaluated.set()

    def EvaluateCurrentModel(self, request, context):
        if not request.HasField("evaluation_spec") or request.evaluation_spec.model.model_path:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "evaluation_spec: expected an evaluation task without a model")
        threading.Thread(target=self.evaluate, args=(request,)).start()
        return control_pb.EvaluateCurrentModelReply()

    def beat(self):
        while not self.done.wait(0 if self.soon else 1):
            self.soon = False
            reply = self.stub.Heartbeat(pb.HeartbeatRequest(session=self.joined.session, evaluates=self.name == "heartbeat"), timeout=30)
            for command in reply.commands:
                if command.HasField("evaluate_current_model"):
                    self.evaluate(command.evaluate_current_model)
                    self.soon = True  # the next heartbeat has the next task

    def request(self):
        self.seq += 1
        return pb.Request(session=self.joined.session, job_id=self.joined.job_id, seq=self.seq, ack=self.seq)

    def train(self):
        accepts = [data_pb.TASK_KIND_TRAINING] + [data_pb.TASK_KIND_EVALUATION] * (self.name == "request")
        while not self.done.is_set():
            task = self.stub.GetTask(pb.TrainerInfo(request=self.request(), accepts=accepts), timeout=30)
            if task.HasField("end"):
                say("end", self.name, pb.EndTaskSpec.Reason.Name(task.end.reason))
                self.done.set()
            elif task.HasField("evaluation_spec"):
                say("evaluated", self.name, task.evaluation_spec.round, task.evaluation_spec.HasField("model"))
                self.stub.PushResult(pb.TaskResult(token=task.token, request=self.request(), metrics=self.metrics(task)), timeout=30)
                self.evaluated.set()
            elif task.HasField("training_task"):
                say("trains", self.name)
                if self.name != "request":
                    self.evaluated.wait()
                elif not self.evaluated.is_set():
                    self.done.wait(0.1)
                self.stub.PushResult(pb.TaskResult(token=task.token, request=self.request()), timeout=30)

    def run(self):
        address = ""
        if self.name == "port":
            server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
            control_grpc.add_TrainerControlServicer_to_server(self, server)
            address = f":{server.add_insecure_port('127.0.0.1:0')}"
            server.start()
        self.joined = self.stub.Join(pb.JoinRequest(id=self.name, control_address=address), timeout=30)
        heart = threading.Thread(target=self.beat)
        heart.start()
        self.train()
        heart.join()


def main():
    master, data = sys.argv[1:]
    stub = coordinator_grpc.CoordinatorStub(grpc.insecure_channel(master))
    stub.ReportDataset(pb.ReportDatasetRequest(paths=[data]), timeout=30)
    threads = [threading.Thread(target=Trainer(name, stub).run) for name in LOSSES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


main()
