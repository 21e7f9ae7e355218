"""Re-export the parts of kafka-python that are used, with its import-time warnings suppressed.

Importing any part of kafka-python loads all its schemas, in a way that Python has deprecated. Only those warnings are
suppressed, and only during this import.
"""

from __future__ import annotations

import warnings
from typing import Any, BinaryIO

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka.errors import kafka_errors
    from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
    from kafka.net.sasl.plain import SaslMechanismPlain
    from kafka.net.sasl.scram import SaslMechanismScram
    from kafka.protocol.admin import (
        CreateTopicsRequest,
        CreateTopicsResponse,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DescribeConfigsRequest,
        DescribeConfigsResponse,
        DescribeProducersRequest,
        DescribeProducersResponse,
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
    )
    from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
    from kafka.protocol.metadata import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FindCoordinatorRequest,
        FindCoordinatorResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddOffsetsToTxnResponse,
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnResponse,
        EndTxnRequest,
        EndTxnResponse,
        InitProducerIdRequest,
        InitProducerIdResponse,
        ProduceRequest,
        ProduceResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )
    from kafka.protocol.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )
    from kafka.protocol.schemas.fields.codecs import TaggedFields
    from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.util import calc_crc32c


def _skip_tags(tagged_fields: Any, data: BinaryIO) -> None:
    """Skip the tagged fields of a struct that is itself a tagged field.

    KIP-482 lets later versions add some there too. kafka-python asserts that there are none, so it could not talk to
    the first broker that sends one: the features of ApiVersions are such structs.
    """
    tagged_fields([]).decode(data)


_tagged_fields: Any = TaggedFields
_tagged_fields.decode_empty = classmethod(_skip_tags)


class WholeRecordsBuilder(DefaultRecordBatchBuilder):
    """kafka-python's builder, which counts a record before it has its bytes; after an exception this has neither."""

    __slots__ = ()

    def append(self, *record: Any) -> Any:
        size, count, last_offset = len(self._buffer), self._num_records, self._last_offset
        try:
            return super().append(*record)  # type: ignore[no-untyped-call]
        except BaseException:
            del self._buffer[size:]
            self._num_records, self._last_offset = count, last_offset
            raise


__all__ = [
    "AbstractTokenProvider",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "EncodeBuffer",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SaslMechanismOAuth",
    "SaslMechanismPlain",
    "SaslMechanismScram",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "WholeRecordsBuilder",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
    "calc_crc32c",
    "kafka_errors",
]
