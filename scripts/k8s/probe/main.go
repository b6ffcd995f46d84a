// Command probe is the program of the image that the tests of the cluster run:
//
//	probe exit CODE [MESSAGE]     write MESSAGE to the termination log and exit
//	probe sleep DURATION [DRAIN]  exit with 0 after DURATION; on SIGTERM wait DRAIN, print "drained", exit with 0
//	probe race FILE FIRST OTHER   the first to create FILE exits with 0 after FIRST, the others exit with 1 after OTHER
//	probe index ZERO OTHER        exit with 0 after ZERO if JOB_COMPLETION_INDEX is 0, otherwise after OTHER
//	probe alloc MIB DURATION      allocate and touch MIB mebibytes, then sleep
//	probe serve ADDRESS           answer every HTTP request with the host name
//	probe get TRIES URL...        GET each URL; in a pod, trust and authenticate with the service account
//	probe cp FROM TO              copy a file with its mode
//	probe write FILE TEXT         write a file and sync it
//	probe cat FILE...             print files
//	probe limit                   print the memory limit of the cgroup every 500 ms
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("expected a command, found none"))
	}
	args := append(os.Args[2:], "", "", "")
	switch os.Args[1] {
	case "exit":
		if args[1] != "" {
			terminationLog(args[1])
		}
		os.Exit(number(args[0]))
	case "sleep":
		sleep(args[0], args[1])
	case "race":
		race(args[0], args[1], args[2])
	case "index":
		wait := args[1]
		if os.Getenv("JOB_COMPLETION_INDEX") == "0" {
			wait = args[0]
		}
		time.Sleep(duration(wait))
	case "alloc":
		alloc(number(args[0]), duration(args[1]))
	case "serve":
		name, err := os.Hostname()
		check(err)
		check(http.ListenAndServe(args[0], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })))
	case "get":
		getAll(number(args[0]), os.Args[3:])
	case "cp":
		copyFile(args[0], args[1])
	case "write":
		file, err := os.Create(args[0])
		check(err)
		fmt.Fprintln(file, args[1])
		check(file.Sync())
		check(file.Close())
	case "cat":
		for _, name := range os.Args[2:] {
			text, err := os.ReadFile(name)
			check(err)
			fmt.Printf("%s", text)
		}
	case "limit":
		for ; ; time.Sleep(500 * time.Millisecond) {
			for _, name := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
				if text, err := os.ReadFile(name); err == nil {
					fmt.Printf("%s", text)
				}
			}
		}
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

func fail(err error) {
	fmt.Println("probe:", err)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	check(err)
	return d
}

func terminationLog(message string) {
	check(os.WriteFile("/dev/termination-log", []byte(message), 0o644))
}

func sleep(length, drain string) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Println("started")
	select {
	case <-time.After(duration(length)):
	case <-term:
		fmt.Println("got SIGTERM")
		if drain != "" {
			time.Sleep(duration(drain))
		}
		fmt.Println("drained")
		terminationLog("drained")
	}
}

func race(file, first, other string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		time.Sleep(duration(other))
		os.Exit(1)
	}
	check(f.Close())
	time.Sleep(duration(first))
}

func alloc(mebibytes int, length time.Duration) {
	memory := make([]byte, mebibytes<<20)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	fmt.Println("allocated")
	time.Sleep(length)
	fmt.Println(len(memory)) // in use until here
}

func copyFile(from, to string) {
	info, err := os.Stat(from)
	check(err)
	text, err := os.ReadFile(from)
	check(err)
	check(os.WriteFile(to, text, info.Mode()))
}

// account is the directory of the service account in a pod.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func getAll(tries int, urls []string) {
	pool := x509.NewCertPool()
	if ca, err := os.ReadFile(account + "ca.crt"); err == nil {
		pool.AppendCertsFromPEM(ca)
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		token = nil
	}
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true},
	}
	for _, url := range urls {
		for i := 1; ; i++ {
			err := get(client, url, string(token))
			if err == nil {
				break
			}
			fmt.Println("probe:", err)
			if i >= tries {
				os.Exit(1)
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
}

func get(client *http.Client, url, token string) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	check(err)
	if token != "" && strings.HasPrefix(url, "https:") {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return err
	}
	fmt.Printf("%s %d %s\n", url, response.StatusCode, strings.Join(strings.Fields(string(body)), " "))
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
