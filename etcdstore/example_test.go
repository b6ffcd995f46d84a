package etcdstore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"trainmaster/etcdstore"
)

// An embedded etcd serves a job. A trainer finds the parameter servers by the registry, and its calls to a server end when the
// server releases its index.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: dir})
	if err != nil {
		log.Print(err)
		return
	}
	defer etcd.Close()
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{etcd.Endpoint()}, Job: "digits"})
	if err != nil {
		log.Print(err)
		return
	}
	defer store.Close()

	// The leader stores the number of servers, and a server claims an index.
	if _, err := store.SetDesiredIfAbsent(ctx, 1); err != nil {
		log.Print(err)
		return
	}
	claim, err := store.ClaimPS(ctx, "127.0.0.1:7164", time.Minute, nil)
	if err != nil {
		log.Print(err)
		return
	}

	// A trainer gives Addrs and During to params.Config.
	roster := store.FollowServers(ctx)
	addrs, err := roster.Addrs(ctx, nil)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("servers", addrs)
	call, release := roster.During(ctx, claim.Index(), addrs[0])
	defer release()
	if err := claim.Release(ctx); err != nil {
		log.Print(err)
		return
	}
	<-call.Done()
	fmt.Println(context.Cause(call))
	// Output:
	// servers [127.0.0.1:7164]
	// etcd names another address for this parameter server, or none
}
