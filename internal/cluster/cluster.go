// Package cluster makes several servers one cluster.
//
// Every server is a member of one etcd and an API server with a cache of its own. The first server creates the CAs and the keys. A server that
// joins verifies a running server by the CA hash in its token (Join), authenticates with the token, and receives two things over that connection: the
// keys that all servers share (Keys), and a place among the members of etcd, as a learner. It serves the API when etcd has promoted it.
//
// Servers are joined, listed and removed by an API that every server has (Handler):
//
//	POST   /apis/cluster.skiff.io/v1/servers          a JoinRequest, returned as JoinResponse
//	GET    /apis/cluster.skiff.io/v1/servers          a ServerList
//	DELETE /apis/cluster.skiff.io/v1/servers/{name}
//
// To an authorizer that is `create`, `list` and `delete` of servers in the API group cluster.skiff.io.
package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/store/etcd"
	"skiff/internal/upgrade"
)

// GroupVersion is the API group and version of servers.
var GroupVersion = schema.GroupVersion{Group: "cluster.skiff.io", Version: "v1"}

// Resource is the resource by which access to the API is authorized.
var Resource = GroupVersion.WithResource("servers").GroupResource()

const (
	// Root is the prefix of all paths of the API.
	Root = "/apis/cluster.skiff.io/"
	path = Root + "v1/servers"

	// ServerGroup is the group of the bootstrap tokens with which servers join.
	ServerGroup = "system:bootstrappers:skiff:server"
)

// JoinRequest is what a server sends that wants to join.
type JoinRequest struct {
	metav1.TypeMeta `json:",inline"`
	// PeerURL is where the other members will reach the server's etcd.
	PeerURL string `json:"peerURL"`
	// Settings are the settings of the server that must be the same on all servers.
	Settings Settings `json:"settings"`
	// Release is that of the server. A server without one decides alone whether it may run in the cluster.
	Release *upgrade.Release `json:"release,omitempty"`
}

// JoinResponse is what the server receives.
type JoinResponse struct {
	metav1.TypeMeta `json:",inline"`
	Keys            Keys `json:"keys"`
	// Members are the members of etcd, the new one included.
	Members []etcd.Member `json:"members"`
}

// ServerList are the servers of the cluster.
type ServerList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []Server `json:"items"`
}

// Server is a member of etcd and the release of its server.
type Server struct {
	etcd.Member
	// Release is nil before the server has started for the first time.
	Release *upgrade.Release `json:"release,omitempty"`
}

// Members are the members of etcd. *etcd.Store implements it.
type Members interface {
	Members(ctx context.Context) ([]etcd.Member, error)
	AddLearner(ctx context.Context, peerURL string) ([]etcd.Member, error)
	RemoveMember(ctx context.Context, nameOrID string) error
}

// Settings are the values of flags.
type Settings map[string]string

// Differences says which settings of a joining server differ from the cluster's; empty: none.
func (s Settings) Differences(joining Settings) string {
	var differences []string
	for _, flag := range slices.Sorted(maps.Keys(s)) {
		if s[flag] != joining[flag] {
			differences = append(differences, fmt.Sprintf("--%s is %q, in the cluster it is %q", flag, joining[flag], s[flag]))
		}
	}
	return strings.Join(differences, "; ")
}
