"""What the trainers of this directory share: a channel to the masters, the records of a task, and a model.

The package trainmaster.v1 is generated from the .proto files (README.md).
"""

import json
import struct

import grpc
import numpy

from trainmaster.v1 import coordinator_pb2_grpc, data_proxy_pb2, data_proxy_pb2_grpc

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


def connect(masters):
    """Returns a stub of the service Coordinator. masters are the addresses of all masters, separated by commas."""
    return coordinator_pb2_grpc.CoordinatorStub(grpc.insecure_channel("ipv4:" + masters, options=OPTIONS))


def call(method, request):
    """Makes a call, which waits for a leader. Each call can be repeated: the master answers it as before."""
    return method(request, wait_for_ready=True, timeout=60)


class Data:
    """Reads the records of tasks from data proxies."""

    def __init__(self, location=""):
        self.location, self.proxies = location, {}

    def records(self, spec):
        files, location = spec.files, self.location
        if spec.HasField("stream"):  # the master runs with --data-proxy
            files, location = spec.stream.files, spec.stream.data_proxy_location
        if location not in self.proxies:
            self.proxies[location] = data_proxy_pb2_grpc.DataProxyStub(grpc.insecure_channel(location))
        proxy = self.proxies[location]
        stream = proxy.CreateStream(data_proxy_pb2.CreateStreamRequest(spec=files), timeout=60).stream_id
        batches = proxy.ReadData(data_proxy_pb2.DataBatchRequest(stream_id=stream, batch_size=100), timeout=600)
        return [record.data for batch in batches for record in batch.batch]


class Model:
    """A softmax regression on the records of `master recordio convert` (docs/formats/samples.md)."""

    def __init__(self, rate):
        self.rate, self.weights = rate, None

    def forward(self, record):
        """Returns the features, the odds of the classes, and the label of a record."""
        version, kind, _, scale, label, classes = struct.unpack_from("<BBHfII", record)
        if version != 3:
            raise ValueError(f"record has version {version}: expected 3")
        values = numpy.frombuffer(record, "u1" if kind == 1 else "<f4", offset=16)
        features = numpy.append(values * scale, 1.0)
        if self.weights is None:
            self.weights = numpy.zeros((classes, len(features)))
        scores = self.weights @ features
        odds = numpy.exp(scores - scores.max())
        return features, odds / odds.sum(), label

    def train(self, record):
        """Trains a record, and returns its loss."""
        features, odds, label = self.forward(record)
        loss = -numpy.log(max(odds[label], 1e-12))
        odds[label] -= 1
        self.weights -= self.rate * numpy.outer(odds, features)
        return float(loss)

    def evaluate(self, records):
        """Returns the sum of the losses, and the number of correct predictions."""
        results = [(odds, label) for _, odds, label in map(self.forward, records)]
        return (float(sum(-numpy.log(max(odds[label], 1e-12)) for odds, label in results)),
                sum(int(odds.argmax() == label) for odds, label in results))
