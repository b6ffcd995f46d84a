#!/usr/bin/env python3
"""A trainer in Python with three calls: ReportDataset, GetTask and PushResult.

It gets tasks from the service Coordinator, reads their records from a data proxy, and trains a softmax regression. If its connection ends,
its task is dispatched again. session_trainer.py also evaluates, and can be stopped and queried.
"""

import argparse
import sys

import grpc
import numpy

from client import Data, Model, call, connect
from trainmaster.v1 import coordinator_pb2 as pb


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masters", default="127.0.0.1:8080", help="addresses of all masters, separated by commas")
    parser.add_argument("--data-proxy", default="127.0.0.1:8082", help="address of a data proxy, for tasks that name none")
    parser.add_argument("--data", nargs="+", required=True, help="files of the dataset: paths or globs on the machine of the master")
    parser.add_argument("--trainer-id", type=int, default=1, help="number of this trainer in this process")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args()

    coordinator, data, model = connect(args.masters), Data(args.data_proxy), Model(args.learning_rate)
    me = pb.TrainerInfo(trainer_id=args.trainer_id)
    call(coordinator.ReportDataset, pb.ReportDatasetRequest(paths=args.data))
    task, tasks, records, loss = call(coordinator.GetTask, me), 0, 0, 0.0
    while not task.HasField("end"):
        if not task.HasField("training_task"):  # there is none yet
            task = call(coordinator.GetTask, me)
            continue
        result = pb.TaskResult(task_id=task.task_id, ask=me)
        try:
            losses = [model.train(record) for record in data.records(task.training_task.data)]
            result.stat.records, result.loss = len(losses), float(numpy.mean(losses))
            tasks, records, loss = tasks + 1, records + result.stat.records, result.loss
        except grpc.RpcError as error:  # of the data proxy: another attempt may succeed
            result.error = f"{error.code().name}: {error.details()}"
            print("task returned:", result.error, file=sys.stderr)
        task = call(coordinator.PushResult, result).next
    print(f"{pb.EndTaskSpec.Reason.Name(task.end.reason)}: {tasks} tasks, {records} records, last loss {loss:.3f} {task.end.text}".rstrip())
    return 0 if task.end.reason == pb.EndTaskSpec.REASON_PASSES_DONE else 1


if __name__ == "__main__":
    sys.exit(main())
