package local

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"trainmaster/master/podmanager/processes"
)

// The test binary is also the program that its tests run: with "child" as its first
// argument, and then what to do.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(child(os.Args[2], os.Args[3:]))
	}
	goleak.VerifyTestMain(m)
}

// child does one thing and returns an exit code.
func child(what string, args []string) int {
	switch what {
	case "stays": // until SIGTERM, which it notes with its name
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		note(args[0], args[1]+" up")
		<-terminated
		if len(args) > 2 { // it takes its time
			time.Sleep(time.Duration(number(args[2])) * time.Millisecond) // the duration of its end
		}
		note(args[0], args[1]+" terminated")
	case "ends": // exits when the file has the given line
		for !strings.Contains(strings.Join(noted(args[0]), "\n"), args[1]) {
			time.Sleep(time.Millisecond) // interval between checks
		}
		note(args[0], args[2]+" ended")
		return number(args[3])
	}
	return 0
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// note appends a line to a file that several processes share.
func note(path, line string) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, line); err != nil {
		panic(err)
	}
}

// noted are the lines of such a file.
func noted(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		panic(err)
	}
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(data)), " ", "_"))
}

func silent() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// runs is a process of this test binary.
func runs(t *testing.T, args ...string) processes.Process {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return processes.Process{Path: binary, Args: append([]string{"child"}, args...), Log: filepath.Join(t.TempDir(), "child.log"), Grace: time.Minute}
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(limit) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
