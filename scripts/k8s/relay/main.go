//go:build linux

// Command relay forwards connections into another network namespace:
//
//	relay LISTEN NETNS-FILE TARGET
//
// It accepts connections on LISTEN in the namespace of the caller. It connects each of them to TARGET, a literal IP address and
// port, in the namespace of NETNS-FILE.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: relay LISTEN NETNS-FILE TARGET")
		os.Exit(2)
	}
	log.Fatal(serve(os.Args[1], os.Args[2], os.Args[3]))
}

// answer is the result of one dial.
type answer struct {
	conn net.Conn
	err  error
}

// serve returns the first error.
func serve(address, namespace, target string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	dials := make(chan chan answer)
	entered := make(chan error)
	go func() { // the only thread in the other namespace: it makes all outgoing sockets
		runtime.LockOSThread()
		err := enter(namespace)
		entered <- err
		if err != nil {
			return
		}
		for reply := range dials {
			conn, err := net.Dial("tcp", target)
			reply <- answer{conn, err}
		}
	}()
	if err := <-entered; err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			reply := make(chan answer)
			dials <- reply
			to := <-reply
			if to.err != nil {
				log.Print(to.err)
				conn.Close()
				return
			}
			forward(conn, to.conn)
		}()
	}
}

// enter moves the calling thread to the network namespace.
func enter(namespace string) error {
	file, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", namespace, err)
	}
	return nil
}

// forward copies between two connections until both directions have ended.
func forward(a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	done := make(chan struct{}, 2)
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil && !errors.Is(err, net.ErrClosed) {
			log.Print(err)
		}
		if err := to.(*net.TCPConn).CloseWrite(); err != nil {
			log.Print(err)
		}
		done <- struct{}{}
	}
	go one(a, b)
	go one(b, a)
	<-done
	<-done
}
