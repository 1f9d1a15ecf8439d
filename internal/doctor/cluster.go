package doctor

import (
	"context"
	"time"

	"skiff/internal/client"
	"skiff/internal/pki"
)

// pageSize is how many objects of a cluster are read at a time.
const pageSize = 250

// Cluster is a cluster that runs, as an administrator sees it.
type Cluster struct {
	// Client is one of a remote server. Requests to the other servers are sent with its credentials.
	Client *client.Client
	// Keys is the directory of the certificates of a server on this host; empty: there is none.
	Keys pki.Dir
	// ServerName is a name for which the certificates of all API servers are valid, wherever they are reached.
	ServerName string
}

// Examine runs the checks of a cluster, each for at most the timeout. If no API server responds, only the certificates on this host are examined besides.
func (c Cluster) Examine(ctx context.Context, timeout time.Duration) Report {
	surveys := make(chan survey, 1) // stays empty if the time is over before
	first := []Check{{Name: "api", Run: func(ctx context.Context) ([]Finding, error) {
		s := c.survey(ctx)
		surveys <- s
		return decideAPI(s), nil
	}}}
	if c.Keys != "" {
		first = append(first, examine("certificate-files", c.readKeys, decideCertificates))
	}
	report := Run(ctx, first, timeout)
	select {
	case s := <-surveys:
		if s.responds() {
			report.Add(Run(ctx, c.checks(s), timeout))
		}
	default:
	}
	return report
}

// checks are the checks of a cluster of which a server responds.
func (c Cluster) checks(s survey) []Check {
	surveyed := func(context.Context) (survey, error) { return s, nil }
	return []Check{
		examine("certificates", surveyed, decideServedCertificates),
		examine("certificate-requests", c.readRequests, decideRequests),
		examine("clocks", surveyed, decideClocks),
		examine("etcd", c.etcdReader(s), decideEtcd),
		examine("etcd-disk", surveyed, decideEtcdDisk),
		examine("etcd-size", surveyed, decideEtcdSize),
		examine("snapshots", surveyed, decideSnapshots),
		examine("leaders", c.leaderReader(s), decideLeaders),
		examine("nodes", c.nodeReader(s), decideNodes),
		examine("node-disks", c.readNodeDisks, decideNodeDisks),
		examine("versions", surveyed, decideServerVersions),
		examine("system-pods", c.readSystemPods, decideSystemPods),
		examine("webhooks", c.readWebhooks, decideWebhooks),
		examine("api-services", c.readAPIServices, decideAPIServices),
		examine("deprecated-apis", surveyed, decideDeprecated),
	}
}
