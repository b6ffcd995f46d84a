#!/usr/bin/env python3
"""Trainers of a population, made from the .proto files alone, for e2e.TestPythonTrainersOfAPopulation.

Usage: population_trainer.py MASTER DATA PAGE DIRECTORY

They take tasks with the Python code of PAGE, which is docs/population.md. The model of a trainer is its loss. "port" serves TrainerControl and has
the best model first. Its first copy is damaged. When "receiver" has its model, "path" becomes the best: it stores its model in DIRECTORY. When
a trainer has received this one, the loss of "path" fulfills the rule that ends the job.
"""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import sys
import threading
import time

import grpc

from trainmaster.v1 import coordinator_pb2 as pb
from trainmaster.v1 import coordinator_pb2_grpc as coordinator_grpc
from trainmaster.v1 import data_pb2 as data_pb
from trainmaster.v1 import trainer_control_pb2 as control_pb
from trainmaster.v1 import trainer_control_pb2_grpc as control_grpc

ACCEPTS = [data_pb.TASK_KIND_TRAINING, data_pb.TASK_KIND_EVALUATION]
LOSSES = {"port": 2.0, "path": 8.0, "receiver": 9.0}
RETRY = {"maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "5s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}
received = {"port": threading.Event(), "path": threading.Event()}  # by the trainer whose model it is
output = threading.Lock()


def say(*words):
    with output:
        print(*words, flush=True)


class Trainer(control_grpc.TrainerControlServicer):
    def __init__(self, name, coordinator, code, directory):
        self.name, self.coordinator, self.code, self.file = name, coordinator, code, directory / name
        self.loss, self.seq, self.copies, self.ended = LOSSES[name], 0, 0, threading.Event()

    def GetModel(self, request, context):
        content = f"port {self.loss}".encode()
        self.copies += 1
        digest = hashlib.sha256(content if self.copies > 1 else b"damaged").digest()
        yield control_pb.Model(content=content)
        yield control_pb.Model(trainer_id=self.joined.session.ordinal, digest=digest)

    def EvaluateCurrentModel(self, request, context):
        threading.Thread(target=self.evaluate, args=(request,)).start()
        return control_pb.EvaluateCurrentModelReply()

    def evaluate(self, task):
        self.coordinator.PushResult(pb.TaskResult(task_id=task.task_id, metrics=[self.metric(task)]), timeout=60)

    def metric(self, task):
        count = sum(f.num_record for f in task.evaluation_spec.data.files.files)
        return pb.Metric(name="loss", mean=pb.Mean(sum=self.loss * count, count=count))

    def load(self, model):
        """Returns the loss of a model: a path, or its bytes."""
        name, loss = (model.decode() if isinstance(model, bytes) else pathlib.Path(model).read_text()).split()
        say(self.name, "received the model of", name, "as", type(model).__name__)
        received[name].set()
        return float(loss)

    def request(self):
        self.seq += 1
        return pb.Request(session=self.joined.session, job_id=self.joined.job_id, seq=self.seq, ack=self.seq)

    def step(self):
        """Takes a task, and reports its result. It returns False at the end of the job."""
        names = {"coordinator": self.coordinator, "info": pb.TrainerInfo(request=self.request(), accepts=ACCEPTS), "load": self.load, "model": self.loss,
                 "pb": pb, "control_pb": control_pb, "TrainerControlStub": control_grpc.TrainerControlStub, "grpc": grpc, "hashlib": hashlib}
        exec(self.code, names)
        task, result, self.loss = names["task"], names["result"], names["model"]
        if task.HasField("end"):
            say(self.name, "ended", task.end.text)
            self.coordinator.Leave(pb.LeaveRequest(session=self.joined.session), timeout=60)
            return False
        if task.HasField("wait"):
            return True
        if self.name == "path" and received["port"].is_set():
            self.loss = 0.05 if received["path"].is_set() else 1.0
        if task.HasField("evaluation_spec"):
            result.metrics.append(self.metric(task))
        else:
            time.sleep(0.01)
            if result.kept_model:
                say(self.name, "kept its model:", result.kept_model)
            if self.name == "path":
                self.file.write_text(f"path {self.loss}")
                result.model_path = str(self.file)
        result.request.CopyFrom(self.request())
        self.coordinator.PushResult(result, timeout=60)
        return True

    def beat(self):
        while not self.ended.wait(0.5):
            self.coordinator.Heartbeat(pb.HeartbeatRequest(session=self.joined.session), timeout=60)

    def run(self):
        server, address = grpc.server(concurrent.futures.ThreadPoolExecutor(2)), ""
        if self.name == "port":
            control_grpc.add_TrainerControlServicer_to_server(self, server)
            address = f":{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self.joined = self.coordinator.Join(pb.JoinRequest(id=self.name, control_address=address), timeout=60)
        heart = threading.Thread(target=self.beat)
        heart.start()
        try:
            while self.step():
                pass
        finally:
            self.ended.set()
            heart.join()
            server.stop(None)


def main():
    master, data, page, directory = sys.argv[1:]
    blocks = re.findall(r"```python\n(.*?)```", pathlib.Path(page).read_text(), re.DOTALL)
    if len(blocks) != 1:
        sys.exit(f"{page}: expected one block of Python, found {len(blocks)}")
    code = compile(blocks[0], page, "exec")
    coordinator = coordinator_grpc.CoordinatorStub(grpc.insecure_channel(master, options=[("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRY}]}))]))
    coordinator.ReportDataset(pb.ReportDatasetRequest(paths=[data]), timeout=60)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(Trainer(name, coordinator, code, pathlib.Path(directory)).run) for name in LOSSES]
    for run in runs:
        run.result()


main()
