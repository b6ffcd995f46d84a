package grpcapi_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/master"
	"trainmaster/master/grpcapi"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// wants checks the code, the reason and the words of err.
func wants(t *testing.T, err error, code codes.Code, reason string, words ...string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code {
		t.Errorf("code %v, want %v: %v", s.Code(), code, err)
	}
	found := ""
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "trainmaster" {
			found = info.Reason
		}
	}
	if found != reason {
		t.Errorf("reason %q, want %q: %v", found, reason, err)
	}
	for _, word := range words {
		if !strings.Contains(s.Message(), word) {
			t.Errorf("message %q: expected %q", s.Message(), word)
		}
	}
}

func TestBadArguments(t *testing.T) {
	s := serve(t, 0, master.Config{Job: "digits"})
	o := pb.NewAdminClient(s.conn)
	tests := map[string]struct {
		call   func(ctx context.Context) error
		code   codes.Code
		reason string
		words  []string
	}{
		"status of another job": {
			func(ctx context.Context) error { _, err := o.Status(ctx, &pb.StatusRequest{Job: "mnist"}); return err },
			codes.NotFound, "OTHER_JOB", []string{`"digits"`, `"mnist"`},
		},
		"tasks of another job": {
			func(ctx context.Context) error {
				_, err := o.ListTasks(ctx, &pb.ListTasksRequest{Job: "mnist"})
				return err
			},
			codes.NotFound, "OTHER_JOB", nil,
		},
		"trainers of another job": {
			func(ctx context.Context) error {
				_, err := o.ListTrainers(ctx, &pb.ListTrainersRequest{Job: "mnist"})
				return err
			},
			codes.NotFound, "OTHER_JOB", nil,
		},
		"no such state": {
			func(ctx context.Context) error {
				_, err := o.ListTasks(ctx, &pb.ListTasksRequest{States: []pb.TaskState{17}})
				return err
			},
			codes.InvalidArgument, "BAD_ARGUMENT", []string{"states", "17", "SET_ASIDE"},
		},
		"unspecified state": {
			func(ctx context.Context) error {
				_, err := o.ListTasks(ctx, &pb.ListTasksRequest{States: []pb.TaskState{0}})
				return err
			},
			codes.InvalidArgument, "BAD_ARGUMENT", []string{"states"},
		},
		"page size": {
			func(ctx context.Context) error {
				_, err := o.ListTasks(ctx, &pb.ListTasksRequest{PageSize: -1})
				return err
			},
			codes.InvalidArgument, "BAD_ARGUMENT", []string{"page_size", "-1"},
		},
		"page token that is none": {
			func(ctx context.Context) error {
				_, err := o.ListTrainers(ctx, &pb.ListTrainersRequest{PageToken: "next!"})
				return err
			},
			codes.InvalidArgument, "BAD_ARGUMENT", []string{"page_token", "next!"},
		},
		"page token cut short": {
			func(ctx context.Context) error {
				_, err := o.ListTrainers(ctx, &pb.ListTrainersRequest{PageToken: "AAA"})
				return err
			},
			codes.InvalidArgument, "BAD_ARGUMENT", []string{"page_token"},
		},
		"page token too long": {
			func(ctx context.Context) error {
				_, err := o.ListTrainers(ctx, &pb.ListTrainersRequest{PageToken: "AAAAAAAA"})
				return err
			},
			codes.InvalidArgument, "BAD_ARGUMENT", []string{"page_token"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wants(t, tt.call(t.Context()), tt.code, tt.reason, tt.words...) })
	}
}

func TestErrorTable(t *testing.T) {
	tests := map[string]struct {
		err    error
		code   codes.Code
		reason string
	}{
		"wrapped":             {fmt.Errorf("ask: %w", taskqueue.ErrStoreFull), codes.ResourceExhausted, "STORE_FULL"},
		"the term has ended":  {fmt.Errorf("%w: %w", master.ErrNotLeader, taskqueue.ErrDamaged), codes.Unavailable, "NOT_LEADER"},
		"went back":           {fmt.Errorf("%w: %w", master.ErrNotLeader, master.ErrStoreWentBack), codes.DataLoss, "STORE_WENT_BACK"},
		"deadline":            {context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED"},
		"without a row":       {errors.New("a surprise"), codes.Unknown, "UNKNOWN"},
		"a status of grpc's":  {status.Error(codes.Unimplemented, "no"), codes.Unimplemented, ""},
		"a status inside":     {fmt.Errorf("etcd: %w", status.Error(codes.NotFound, "no")), codes.Unknown, "UNKNOWN"},
		"another ledger":      {master.ErrOtherLedger, codes.FailedPrecondition, "OTHER_LEDGER"},
		"another cluster":     {master.ErrForeign, codes.FailedPrecondition, "FOREIGN_STATE"},
		"the job is finished": {fmt.Errorf("%w: all passes are done", master.ErrJobFinished), codes.FailedPrecondition, "JOB_FINISHED"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wants(t, grpcapi.StatusOf(tt.err), tt.code, tt.reason) })
	}
	if grpcapi.StatusOf(nil) != nil {
		t.Error("nil: expected no status")
	}
}

// Every error that packages master and taskqueue export has a row.
func TestErrorTableHasEveryExportedError(t *testing.T) {
	rows := grpcapi.TableErrors()
	for _, dir := range []string{"..", "../../taskqueue"} {
		n := 0
		for name, text := range exportedErrors(t, dir) {
			n++
			if !slices.ContainsFunc(rows, func(err error) bool { return err.Error() == text }) {
				t.Errorf("%s (%q) of %s has no row in the table of errors.go", name, text, dir)
			}
		}
		if n < 3 {
			t.Errorf("found only %d errors in %s", n, dir)
		}
	}
}

// exportedErrors returns the errors of a package that are declared as `ErrX = errors.New("text")`.
func exportedErrors(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Names) != 1 || len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, "Err") {
				return true
			}
			if call, ok := v.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
				if lit, ok := call.Args[0].(*ast.BasicLit); ok {
					text, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					found[v.Names[0].Name] = text
				}
			}
			return true
		})
	}
	return found
}
