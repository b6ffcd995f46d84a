#!/usr/bin/env python3
"""Copies the current model of a trainer: copy_model.py HOST:PORT FILE

A model is complete when the last message has the SHA-256 of the content.
"""

import hashlib
import pathlib
import sys

import grpc

from trainmaster.v1 import trainer_control_pb2, trainer_control_pb2_grpc


def main():
    address, path = sys.argv[1:]
    content, digest = b"", b""
    with grpc.insecure_channel(address) as channel:
        for part in trainer_control_pb2_grpc.TrainerControlStub(channel).GetModel(trainer_control_pb2.GetModelRequest(), timeout=60):
            content, digest = content + part.content, part.digest
    if digest != hashlib.sha256(content).digest():
        sys.exit(f"{address}: incomplete model of {len(content)} bytes: repeat the copy")
    pathlib.Path(path).write_bytes(content)
    print(f"copied     model version {part.model_id}, {len(content)} bytes")


if __name__ == "__main__":
    main()
