package doctor

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
)

// Node is a node that has joined a cluster, as it sees the cluster itself: a node may read little more than its own object.
type Node struct {
	// Name is that of the node, KeyDir the directory of its certificates.
	Name, KeyDir string
	// Servers are the addresses of the API servers that it knows.
	Servers []string
	// Connect makes a client of one of them, with the node's own credentials.
	Connect func(address string) (*client.Client, error)
}

// Checks are the checks of a node.
func (n Node) Checks() []Check {
	return []Check{
		examine("certificate-files", n.readNodeKeys, decideCertificates),
		{Name: "api", Run: n.reach},
	}
}

// nodeView is what a node learns of its servers.
type nodeView struct {
	now     time.Time
	servers []server
	// node is the node's own object; nil: no server has told.
	node *nodeState
	// err is why it was not told.
	err error
}

// reach asks all servers, and one of them for the node itself.
func (n Node) reach(ctx context.Context) ([]Finding, error) {
	v := nodeView{now: time.Now(), servers: make([]server, min(len(n.Servers), maxServers))}
	asking, cancel := shorten(ctx)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range v.servers {
		group.Go(func() error {
			v.servers[i] = n.ask(asking, n.Servers[i])
			return nil
		})
	}
	_ = group.Wait() // always nil
	for _, one := range v.servers {
		if one.err == nil {
			v.node, v.err = n.readSelf(ctx, one.address)
			break
		}
	}
	return decideNodeView(v), nil
}

// ask asks one server.
func (n Node) ask(ctx context.Context, address string) server {
	s := server{address: address}
	remote, err := n.Connect(address)
	if err == nil {
		s, err = Cluster{Client: remote}.ask(ctx, "")
	}
	s.address, s.err = address, err
	return s
}

func (n Node) readSelf(ctx context.Context, address string) (*nodeState, error) {
	remote, err := n.Connect(address)
	if err != nil {
		return nil, err
	}
	object, err := client.For[*corev1.Node](remote).Get(ctx, "", n.Name)
	if err != nil {
		return nil, err
	}
	state := newNodeState(object)
	return &state, nil
}

func decideNodeView(v nodeView) []Finding {
	all := survey{now: v.now, servers: v.servers}
	if len(v.servers) == 0 {
		return []Finding{{
			Severity: Error, Problem: "the node knows no API server", Breaks: "the node has not joined", When: whenNow, Fix: "start the agent with --server and --token: docs/joining.md",
		}}
	}
	findings := append(decideAPI(all), decideClocks(all)...)
	if v.err != nil {
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("the node cannot read its own object: %v", v.err), Breaks: "the node reports nothing: its pods are moved to others", When: whenNow,
			Fix: "start skiff on this host; a node that was removed joins again with a token",
		})
	}
	if v.node != nil {
		findings = append(findings, decideNodes(nodesState{now: v.now, nodes: []nodeState{*v.node}})...)
	}
	return findings
}
