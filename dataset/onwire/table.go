// Package onwire converts the errors of datasets and their files into gRPC codes.
package onwire

import (
	"io/fs"

	"google.golang.org/grpc/codes"

	"trainmaster/dataset"
	"trainmaster/dataset/parquet"
	"trainmaster/internal/grpcserver"
	"trainmaster/recordio"
)

// Table has the errors of packages dataset and recordio, and of files.
var Table = grpcserver.Table{
	{Is: dataset.ErrReplaced, Code: codes.FailedPrecondition, Reason: "FILE_REPLACED"},
	{Is: recordio.ErrChanged, Code: codes.FailedPrecondition, Reason: "FILE_REPLACED"},
	{Is: dataset.ErrNoNames, Code: codes.InvalidArgument, Reason: "NO_FILES"},
	{Is: dataset.ErrBadName, Code: codes.InvalidArgument, Reason: "NO_FILES"},
	{Is: dataset.ErrNoMatch, Code: codes.InvalidArgument, Reason: "NO_FILES"},
	{Is: dataset.ErrOutsideRoots, Code: codes.InvalidArgument, Reason: "OUTSIDE_ROOTS"},
	{Is: dataset.ErrScheme, Code: codes.InvalidArgument, Reason: "UNKNOWN_SCHEME"},
	{Is: dataset.ErrStore, Code: codes.Unavailable, Reason: "STORE_UNAVAILABLE"},
	{Is: dataset.ErrBadRange, Code: codes.InvalidArgument, Reason: "BAD_RANGE"},
	{Is: parquet.ErrRows, Code: codes.InvalidArgument, Reason: "NOT_RECORDS"},
	{Is: dataset.ErrNoFile, Code: codes.InvalidArgument, Reason: "NO_FILES"},
	{Is: dataset.ErrNoRecords, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrEmpty, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrTruncated, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrBadMagic, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrBadChecksum, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrBadCompressor, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrMalformed, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrTooLarge, Code: codes.InvalidArgument, Reason: "DAMAGED_FILE"},
	{Is: recordio.ErrNotRegular, Code: codes.InvalidArgument, Reason: "NOT_RECORDS"},
	{Is: fs.ErrNotExist, Code: codes.InvalidArgument, Reason: "NO_FILES"},
	{Is: fs.ErrPermission, Code: codes.InvalidArgument, Reason: "NO_PERMISSION"},
}
