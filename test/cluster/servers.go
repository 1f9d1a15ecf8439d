package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skiff/test/namespaces"
)

// Servers starts n servers that are one cluster, each as Skiff does, in the directories server-0 and so on below dir.
func Servers(dir string, n int, flags ...string) ([]*Cluster, error) {
	var servers []*Cluster
	for i := range n {
		joining := []string{"--cluster-init"}
		if i > 0 {
			token, err := servers[0].NodeToken("--server")
			if err != nil {
				return servers, err
			}
			joining = []string{"--join=" + servers[0].URL, "--join-token=" + token}
		}
		server, err := Server(dir, i, append(joining, flags...)...)
		if err != nil {
			return servers, fmt.Errorf("start server %d: %w", i, err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// Server starts a server of Servers and waits until it is ready. One that was started before keeps its state and ports, and needs no flags to join.
func Server(dir string, i int, flags ...string) (*Cluster, error) {
	return Program("").Server(dir, i, flags...)
}

// Server is the function Server with this program.
func (p Program) Server(dir string, i int, flags ...string) (*Cluster, error) {
	c, err := p.StartServer(dir, i, flags...)
	if err != nil {
		return nil, err
	}
	if err := c.WaitReady(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// StartServer is Server without waiting until the server is ready.
func StartServer(dir string, i int, flags ...string) (*Cluster, error) {
	return Program("").StartServer(dir, i, flags...)
}

// StartServer is the function StartServer with this program.
func (p Program) StartServer(dir string, i int, flags ...string) (*Cluster, error) {
	own := filepath.Join(dir, fmt.Sprint("server-", i))
	port, err := keptPort(filepath.Join(dir, fmt.Sprint("peer-port-", i)))
	if err != nil {
		return nil, err
	}
	return p.StartSkiff(own, append([]string{"--etcd-peer-port=" + port}, flags...)...)
}

// AddServer adds a server without a node to a cluster of SkiffNode that was started with --cluster-init, on the host with the given number. It
// returns when the server is ready.
func (c *Cluster) AddServer(number int) (*Cluster, error) {
	token, err := c.NodeToken("--server")
	if err != nil {
		return nil, err
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.URL, "https://"))
	if err != nil {
		return nil, err
	}
	host := c.Host(number)
	dir := filepath.Join(c.Dir, host.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p, err := startBy(host.Start, dir, "skiff", filepath.Join(root, "bin/skiff"), "server", "--no-node", "--join=https://"+net.JoinHostPort(namespaces.NodeAddress, port),
		"--join-token="+token, "--data-dir="+filepath.Join(dir, "data"), "--bind-address="+host.Address, "--secure-port="+port)
	if err != nil {
		return nil, err
	}
	c.Others = append(c.Others, p)
	server := &Cluster{Name: host.Name, Dir: dir, URL: "https://" + net.JoinHostPort(host.Address, port), Kubeconfig: filepath.Join(dir, "data/admin.kubeconfig"), Server: []*Process{p}}
	began := time.Now()
	config, err := server.Config()
	for ; err != nil && !p.Exited() && time.Since(began) < startTimeout; config, err = server.Config() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("%s wrote no kubeconfig: %w; end of its log:\n%s", host.Name, err, p.Log(20))
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return server, waitReady(ctx, config, p)
}
