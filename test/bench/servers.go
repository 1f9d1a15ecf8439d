package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

const (
	// memberCount is the number of servers, and of members of etcd, of measureServers.
	memberCount = 3
	// writeRounds is how often blocks of writes to skiff and to etcd alternate, and blockWrites how many writes a block has.
	writeRounds, blockWrites = 20, 15
	// writeLimit is how long a write to three servers may take, relative to one to three members of etcd.
	writeLimit = 1.3
)

// measureServers writes to three API servers with three members of etcd.
func measureServers(side, dir string, o options) ([]Row, error) {
	const flag = "--disable-admission-plugins=ServiceAccount"
	if err := os.MkdirAll(filepath.Join(dir, "members"), 0o700); err != nil {
		return nil, err
	}
	var servers []*cluster.Cluster
	var err error
	switch side {
	case "skiff":
		servers, err = cluster.Servers(dir, memberCount, flag)
	case "upstream":
		servers, err = upstreamServers(dir, flag)
	default:
		err = fmt.Errorf("unknown server %q", side)
	}
	defer func() {
		for _, server := range servers {
			server.Stop()
		}
	}()
	if err != nil {
		return nil, err
	}
	whole := &cluster.Cluster{Name: side, Dir: dir, URL: servers[0].URL, Kubeconfig: servers[0].Kubeconfig}
	var clients []clientset.Interface
	for _, server := range servers {
		whole.Server = append(whole.Server, server.Server...)
		b, err := newBench(server, o)
		if err != nil {
			return nil, err
		}
		client, err := b.client(protobufType)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	b, err := newBench(whole, o)
	if err != nil {
		return nil, err
	}
	if err := b.createAt(clients); err != nil {
		return nil, err
	}
	if side == "skiff" {
		err = b.compareWithEtcd(filepath.Join(dir, "members"), clients)
	}
	return b.rows, err
}

// upstreamServers starts three API servers on three members of etcd.
func upstreamServers(dir, flag string) ([]*cluster.Cluster, error) {
	members, urls, err := cluster.EtcdMembers(filepath.Join(dir, "members"), memberCount)
	if err != nil {
		return nil, err
	}
	// They are measured, and stopped, with the first API server.
	var servers []*cluster.Cluster
	for i := range memberCount {
		server, err := cluster.UpstreamAPI(filepath.Join(dir, fmt.Sprint("apiserver-", i)), strings.Join(urls, ","), flag)
		if err != nil {
			if i == 0 {
				for _, member := range members {
					member.Kill()
				}
			}
			return servers, err
		}
		if i == 0 {
			server.Server = append(members, server.Server...)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// createAt creates config maps, one after the other at all servers in turn by each client.
func (b *bench) createAt(clients []clientset.Interface) error {
	create := func(prefix string, n int) error {
		return b.parallel(n, func(i int) error {
			_, err := clients[i%len(clients)].CoreV1().ConfigMaps("default").Create(context.Background(), configMap(fmt.Sprint(prefix, i)), metav1.CreateOptions{})
			return err
		})
	}
	if err := create("warm-", 300); err != nil {
		return err
	}
	const name = "three servers, create configmap, protobuf"
	used, wall, err := b.cpu(name, func() error { return create("configmap-", b.Requests) })
	if err != nil {
		return err
	}
	b.add(name+": CPU of all servers", float64(used.Microseconds())/float64(b.Requests), "µs", 1./4)
	b.rows = append(b.rows, Row{Name: name + ": throughput", Value: float64(b.Requests) / wall.Seconds(), Unit: "/s", Goal: 2.5, HigherIsBetter: true})
	return nil
}

// compareWithEtcd compares the time of one write with that of a put of the same size in a cluster of upstream's etcd with as many members. Blocks of
// both alternate, so that the load of the host cancels out.
func (b *bench) compareWithEtcd(dir string, clients []clientset.Interface) error {
	members, urls, err := cluster.EtcdMembers(dir, memberCount)
	if err != nil {
		return err
	}
	defer func() {
		for _, member := range members {
			member.Kill()
		}
	}()
	var stores []*clientv3.Client
	for _, url := range urls {
		store, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: 10 * time.Second})
		if err != nil {
			return fmt.Errorf("connect to etcd: %w", err)
		}
		defer store.Close()
		stores = append(stores, store)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	value, err := configMap("size").Marshal()
	if err != nil {
		return err
	}
	var written atomic.Int64
	write := func(i int) error {
		_, err := clients[i%len(clients)].CoreV1().ConfigMaps("default").Create(ctx, configMap(fmt.Sprint("single-", written.Add(1))), metav1.CreateOptions{})
		return err
	}
	put := func(i int) error {
		key := fmt.Sprint("/registry/configmaps/default/single-", written.Add(1))
		absent := clientv3.Compare(clientv3.ModRevision(key), "=", 0)
		response, err := stores[i%len(stores)].Txn(ctx).If(absent).Then(clientv3.OpPut(key, string(value))).Commit()
		if err == nil && !response.Succeeded {
			err = errors.New("a key exists already")
		}
		return err
	}
	var writes, puts []time.Duration
	for range writeRounds {
		for _, block := range []struct {
			do    func(int) error
			times *[]time.Duration
		}{{write, &writes}, {put, &puts}} {
			for i := range blockWrites {
				began := time.Now()
				if err := block.do(i); err != nil {
					return err
				}
				*block.times = append(*block.times, time.Since(began))
			}
		}
	}
	slices.Sort(writes)
	slices.Sort(puts)
	b.rows = append(b.rows, Row{
		Name: "three servers: time of a write, relative to etcd's own with three members (median)", Unit: "times",
		Value: float64(writes[len(writes)/2]) / float64(puts[len(puts)/2]), Limit: writeLimit,
	})
	return nil
}
