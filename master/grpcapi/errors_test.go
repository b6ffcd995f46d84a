package grpcapi_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/dataset"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/grpcapi"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
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
		"a damaged file":      {fmt.Errorf("index: %w", &recordio.Error{File: "part-1", Offset: 20, Err: recordio.ErrBadChecksum}), codes.InvalidArgument, "DAMAGED_FILE"},
		"several bad files":   {&dataset.FilesError{Bad: 1, Files: 2, First: []error{fs.ErrNotExist}}, codes.InvalidArgument, "NO_FILES"},
		"a path elsewhere":    {fmt.Errorf("/etc/passwd: %w", dataset.ErrOutsideRoots), codes.InvalidArgument, "OUTSIDE_ROOTS"},
		"the job is finished": {fmt.Errorf("%w: all passes are done", master.ErrJobFinished), codes.FailedPrecondition, "JOB_FINISHED"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { wants(t, grpcapi.StatusOf(tt.err, ""), tt.code, tt.reason) })
	}
	if grpcapi.StatusOf(nil, "") != nil {
		t.Error("nil: expected no status")
	}
}

// Every exported error of the packages behind the calls has a row.
func TestErrorTableHasEveryExportedError(t *testing.T) {
	rows := grpcapi.TableErrors()
	other := map[string]string{
		"../../recordio.ErrClosed":     "of a writer",
		"../committer.ErrCutDisturbed": "ends in the component for checkpoints",
		"../store.ErrRenewed":          "ends in the component for evictions",
		"...ErrBadDataset":             "ends the master",
	}
	for _, dir := range []string{"..", "../committer", "../pscontrol", "../store", "../../dataset", "../../recordio", "../../taskqueue"} {
		n := 0
		for name, text := range exportedErrors(t, dir) {
			n++
			if other[dir+"."+name] != "" {
				continue
			}
			if !slices.ContainsFunc(rows, func(err error) bool { return err.Error() == text }) {
				t.Errorf("%s (%q) of %s has no row in the table of errors.go", name, text, dir)
			}
		}
		if n < 2 {
			t.Errorf("found only %d errors in %s", n, dir)
		}
	}
}

// details returns the details of an error.
func details(err error) (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo, bad *errdetails.BadRequest) {
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.BadRequest:
			bad = d
		}
	}
	return info, retry, bad
}

func TestBadArgumentNamesTheField(t *testing.T) {
	s := serve(t, 0, master.Config{})
	_, err := pb.NewAdminClient(s.conn).ListTasks(t.Context(), &pb.ListTasksRequest{PageSize: -1})
	if _, retry, bad := details(err); retry != nil || bad == nil || len(bad.FieldViolations) != 1 || bad.FieldViolations[0].Field != "page_size" || !strings.Contains(bad.FieldViolations[0].Description, "-1") {
		t.Errorf("%v: details %v, %v", err, retry, bad)
	}
}

// A standby names the leader and the pause before the next attempt.
func TestStandbyNamesTheLeader(t *testing.T) {
	job := etcdtest.NewJob(t)
	leader := mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{})
	standby := mastertest.StandBy(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- grpcapi.New(standby.Master, quiet()).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	admin := pb.NewAdminClient(dial(t, l.Addr().String()))
	mastertest.Eventually(t, "the address of the leader", func() bool {
		_, err := admin.Status(t.Context(), &pb.StatusRequest{})
		info, retry, _ := details(err)
		if status.Code(err) != codes.Unavailable || retry == nil || retry.RetryDelay.AsDuration() <= 0 {
			t.Fatalf("a call of a standby: %v, %v", err, retry)
		}
		return info.GetMetadata()["leader"] == leader.Addr
	})
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
