#!/usr/bin/env python3
"""A trainer in Python, made from the .proto files alone.

It gets tasks from the service Coordinator, reads their records from a data proxy, and trains a softmax regression on the records of
`master recordio convert` (docs/formats/samples.md). Start it after a master and a data proxy:

    examples/coordinator/trainer.py --masters 127.0.0.1:8080 --data-proxy 127.0.0.1:8082 --data '/data/digits-0*'

It needs the packages grpcio, grpcio-tools and numpy.
"""

import argparse
import importlib
import json
import pathlib
import struct
import sys
import tempfile

import grpc
import numpy
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
SERVICE = "trainmaster.v1.Coordinator"

# All masters are in the address. The health check finds the leader, and the retries cover the time without a leader.
CONFIG = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": SERVICE},
    "methodConfig": [{
        "name": [{"service": SERVICE}],
        "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s",
                        "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}],
}
OPTIONS = [
    ("grpc.service_config", json.dumps(CONFIG)),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 2000),
]


def stubs():
    """Generates Python from the .proto files, and returns the modules."""
    out = tempfile.mkdtemp(prefix="trainmaster-stubs-")
    names = ["data", "coordinator", "data_proxy"]
    files = [f"trainmaster/v1/{name}.proto" for name in names]
    if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}", *files]) != 0:
        sys.exit(f"cannot compile the .proto files in {PROTO}")
    sys.path.insert(0, out)
    modules = ["coordinator_pb2", "coordinator_pb2_grpc", "data_proxy_pb2", "data_proxy_pb2_grpc"]
    return [importlib.import_module(f"trainmaster.v1.{module}") for module in modules]


class Model:
    """A softmax regression, trained one record at a time."""

    def __init__(self, rate):
        self.rate, self.weights = rate, None

    def train(self, record):
        """Trains a record, and returns its loss."""
        version, kind, _, scale, label, classes = struct.unpack_from("<BBHfII", record)
        if version != 3:
            raise ValueError(f"record has version {version}: expected 3")
        values = numpy.frombuffer(record, "u1" if kind == 1 else "<f4", offset=16)
        features = numpy.append(values * scale, 1.0)
        if self.weights is None:
            self.weights = numpy.zeros((classes, len(features)))
        scores = self.weights @ features
        odds = numpy.exp(scores - scores.max())
        odds /= odds.sum()
        loss = -numpy.log(max(odds[label], 1e-12))
        odds[label] -= 1
        self.weights -= self.rate * numpy.outer(odds, features)
        return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", default="127.0.0.1:8080", help="addresses of all masters, separated by commas")
    parser.add_argument("--data-proxy", default="127.0.0.1:8082", help="address of a data proxy, for tasks that name none")
    parser.add_argument("--data", nargs="+", required=True, help="files of the dataset: paths or globs on the machine of the master")
    parser.add_argument("--trainer-id", type=int, default=1, help="number of this trainer in this process")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args()

    pb, pb_grpc, data, data_grpc = stubs()
    coordinator = pb_grpc.CoordinatorStub(grpc.insecure_channel("ipv4:" + args.masters, options=OPTIONS))
    proxies = {}
    me = pb.TrainerInfo(trainer_id=args.trainer_id)
    model = Model(args.learning_rate)

    def call(method, request):
        # Each call can be repeated: the master answers it as before.
        return method(request, wait_for_ready=True, timeout=60)

    def train(spec):
        """Trains the records of a task, and returns their number and their mean loss."""
        files, location = spec.files, args.data_proxy
        if spec.HasField("stream"):  # the master runs with --data-proxy
            files, location = spec.stream.files, spec.stream.data_proxy_location
        if location not in proxies:
            proxies[location] = data_grpc.DataProxyStub(grpc.insecure_channel(location))
        proxy = proxies[location]
        stream = proxy.CreateStream(data.CreateStreamRequest(spec=files)).stream_id
        losses = [model.train(record.data)
                  for batch in proxy.ReadData(data.DataBatchRequest(stream_id=stream, batch_size=100))
                  for record in batch.batch]
        return len(losses), float(numpy.mean(losses))

    call(coordinator.ReportDataset, pb.ReportDatasetRequest(paths=args.data))
    task, tasks, records, loss = call(coordinator.GetTask, me), 0, 0, 0.0
    while not task.HasField("end"):
        if not task.HasField("training_task"):  # there is none yet
            task = call(coordinator.GetTask, me)
            continue
        result = pb.TaskResult(task_id=task.task_id, ask=me)
        try:
            result.stat.records, result.loss = train(task.training_task.data)
            tasks, records, loss = tasks + 1, records + result.stat.records, result.loss
        except grpc.RpcError as error:  # of the data proxy: another attempt may succeed
            result.error = f"{error.code().name}: {error.details()}"
            print("task returned:", result.error, file=sys.stderr)
        task = call(coordinator.PushResult, result).next
    print(f"{pb.EndTaskSpec.Reason.Name(task.end.reason)}: {tasks} tasks, {records} records, last loss {loss:.3f} {task.end.text}".rstrip())
    return 0 if task.end.reason == pb.EndTaskSpec.REASON_PASSES_DONE else 1


if __name__ == "__main__":
    sys.exit(main())
