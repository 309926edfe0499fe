# SPDX-License-Identifier: Apache-2.0
"""ptc.v1 as a stranger speaks it: messages built from proto/ptc.proto at run time, without protoc, over grpcio.

    with wire.Peer(f"unix:{socket}") as p:
        reply = p.call("Control", "Status", job="j")       # unary or the list of a stream's messages
"""
import os
import re

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "proto", "ptc.proto")
F = descriptor_pb2.FieldDescriptorProto


def parse(path):
    with open(path) as f:
        text = re.sub(r"//[^\n]*", "", f.read())
    file = descriptor_pb2.FileDescriptorProto(name="ptc.proto", package="ptc.v1", syntax="proto3")
    for name, body in re.findall(r"message\s+(\w+)\s*\{([^}]*)\}", text):
        m = file.message_type.add(name=name)
        for repeated, kind, field, number in re.findall(r"(repeated\s+)?([\w.]+)\s+(\w+)\s*=\s*(\d+)", body):
            d = m.field.add(name=field, number=int(number), label=F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL)
            if hasattr(F, f"TYPE_{kind.upper()}"):
                d.type = getattr(F, f"TYPE_{kind.upper()}")
            else:
                d.type, d.type_name = F.TYPE_MESSAGE, f".ptc.v1.{kind}"
    methods = {(service, rpc): (bool(a), request, bool(b), reply)
               for service, body in re.findall(r"service\s+(\w+)\s*\{([^}]*)\}", text)
               for rpc, a, request, b, reply in
               re.findall(r"rpc\s+(\w+)\((stream\s+)?(\w+)\)\s+returns\s+\((stream\s+)?(\w+)\)", body)}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {m.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ptc.v1.{m.name}"))
             for m in file.message_type}
    return types, methods


TYPES, METHODS = parse(PROTO)


def message(name, /, **fields):
    fields.setdefault("version", 1)
    if "version" not in TYPES[name].DESCRIPTOR.fields_by_name:
        del fields["version"]
    return TYPES[name](**fields)


class Peer:
    """A connection; credentials None: plain, as on the control socket."""

    def __init__(self, target, credentials=None, metadata=(), timeout_s=30):
        import grpc
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
                   ("grpc.use_local_subchannel_pool", 1)]
        self.channel = (grpc.secure_channel(target, credentials, options) if credentials
                        else grpc.insecure_channel(target, options))
        self.metadata, self.timeout_s = list(metadata), timeout_s

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.channel.close()

    def start(self, service, rpc, request, timeout_s=None):
        """The call as grpcio has it: a future for one reply, an iterator for several. request: bytes, a message, or an
        iterable of either for a stream."""
        streams_in, _, streams_out, reply = METHODS[service, rpc]
        kind = {(False, False): "unary_unary", (False, True): "unary_stream", (True, False): "stream_unary"}[streams_in,
                                                                                                           streams_out]
        stub = getattr(self.channel, kind)(f"/ptc.v1.{service}/{rpc}",
                                           lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
                                           TYPES[reply].FromString)
        stub = stub if streams_out else stub.future
        return stub(iter(request) if streams_in else request, timeout=timeout_s or self.timeout_s, metadata=self.metadata)

    def call(self, service, rpc, request=None, timeout_s=None, **fields):
        if request is None:
            request = message(METHODS[service, rpc][1], **fields)
        c = self.start(service, rpc, request, timeout_s)
        return list(c) if METHODS[service, rpc][2] else c.result()
