package system

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/api/core"
	"skiff/internal/atomicfile"
	"skiff/internal/client"
	"skiff/internal/network/dns"
	"skiff/internal/network/overlay"
)

// clusterSettings are what a node of another host has to know of its cluster before it can start.
type clusterSettings struct {
	ServiceCIDRs  []netip.Prefix  `json:"serviceCIDRs,omitempty"`
	ClusterDomain string          `json:"clusterDomain"`
	Backend       overlay.Backend `json:"backend,omitempty"`
	PodCIDRs      []netip.Prefix  `json:"podCIDRs,omitempty"`
}

// apply sets the options of a node.
func (s clusterSettings) apply(o *nodeOptions) {
	o.serviceCIDRs, o.clusterDNS, o.clusterDomain = s.ServiceCIDRs, clusterDNS(s.ServiceCIDRs), s.ClusterDomain
	o.backend, o.clusterCIDRs = s.Backend, s.PodCIDRs
}

// encode returns the settings as they are recorded.
func (s clusterSettings) encode() []byte {
	data, _ := json.Marshal(s) // texts always encode
	return data
}

// clusterRecord runs a node with the settings of its cluster, which it records: after a reboot the node starts, and runs its static pods, before the
// API server answers.
type clusterRecord struct {
	file string
	// read reads the settings from the API. It retries until the server has answered, and returns known ones where the server has none.
	read func(ctx context.Context, known clusterSettings) (clusterSettings, error)
	// run runs the node until ctx is done.
	run func(context.Context, clusterSettings) error
	log *slog.Logger
}

// Run runs the node until ctx is done. When the cluster has other settings than the recorded, the node is started again with them.
func (r *clusterRecord) Run(ctx context.Context) error {
	recorded, err := r.load()
	if err != nil {
		return err
	}
	if recorded == nil {
		settings, err := r.read(ctx, clusterSettings{ClusterDomain: "cluster.local"})
		if err != nil {
			return err
		}
		if err := r.save(settings); err != nil {
			return err
		}
		return r.run(ctx, settings)
	}
	current, err := r.runRecorded(ctx, *recorded)
	if err != nil || current == nil {
		return err
	}
	r.log.Info("the settings of the cluster have changed, starting the node again", "serviceCIDRs", current.ServiceCIDRs, "clusterDomain", current.ClusterDomain,
		"backend", current.Backend, "podCIDRs", current.PodCIDRs)
	return r.run(ctx, *current)
}

// runRecorded runs the node with recorded settings. It returns others if the cluster has others, and nil when ctx is done.
func (r *clusterRecord) runRecorded(ctx context.Context, recorded clusterSettings) (*clusterSettings, error) {
	var current *clusterSettings
	group, groupCtx := errgroup.WithContext(ctx)
	nodeCtx, stop := context.WithCancel(groupCtx)
	defer stop()
	group.Go(func() error { return r.run(nodeCtx, recorded) })
	group.Go(func() error {
		read, err := r.read(nodeCtx, recorded)
		if err != nil {
			return wrap("settings of the cluster", err)
		}
		if bytes.Equal(read.encode(), recorded.encode()) {
			return nil
		}
		if err := r.save(read); err != nil {
			return err
		}
		current = &read
		stop()
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, nil
	}
	return current, nil
}

// load returns the recorded settings; nil: there are none.
func (r *clusterRecord) load() (*clusterSettings, error) {
	data, err := os.ReadFile(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of the cluster: %w", err)
	}
	var settings clusterSettings
	if err := json.Unmarshal(data, &settings); err != nil {
		r.log.Warn("failed to read the recorded settings of the cluster, waiting for the API server", "file", r.file, "error", err)
		return nil, nil
	}
	return &settings, nil
}

func (r *clusterRecord) save(settings clusterSettings) error {
	if err := atomicfile.Write(r.file, settings.encode(), 0o600); err != nil {
		return fmt.Errorf("record the settings of the cluster: %w", err)
	}
	return nil
}

// remove forgets the settings, when the host joins another cluster.
func (r *clusterRecord) remove() error {
	if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the settings of the cluster: %w", err)
	}
	return nil
}

// readCluster reads the settings of a cluster. Requests are repeated while the server cannot be reached. A server that does not have the objects, or
// does not let nodes read them, is one of another kind, or has just started; then the known settings stay.
func readCluster(ctx context.Context, remote *client.Client, known clusterSettings, log *slog.Logger) (clusterSettings, error) {
	settings := known
	err := untilAnswered(ctx, log, func() error {
		object, err := client.For[*networkingv1.ServiceCIDR](remote).Get(ctx, "", core.DefaultServiceCIDR)
		if err == nil {
			settings.ServiceCIDRs, err = parsePrefixes(object.Spec.CIDRs)
		}
		return err
	})
	if err != nil {
		return settings, fmt.Errorf("read the service CIDRs: %w", err)
	}
	err = untilAnswered(ctx, log, func() error {
		service, err := client.For[*corev1.Service](remote).Get(ctx, dns.ServiceNamespace, dns.ServiceName)
		if err == nil {
			settings.ClusterDomain = cmp.Or(dns.ClusterDomain(service), settings.ClusterDomain)
		}
		return err
	})
	if err != nil {
		return settings, fmt.Errorf("read the cluster's domain: %w", err)
	}
	err = untilAnswered(ctx, log, func() error {
		cluster, err := overlay.ReadCluster(ctx, remote)
		if err == nil {
			settings.Backend, settings.PodCIDRs = cluster.Backend, cluster.CIDRs
		}
		return err
	})
	if err != nil {
		return settings, fmt.Errorf("read the cluster's network: %w", err)
	}
	return settings, nil
}

// untilAnswered repeats a request until the server has answered it.
func untilAnswered(ctx context.Context, log *slog.Logger, request func() error) error {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		err := request()
		if err == nil {
			return nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			log.Warn("failed to read a setting of the cluster, keeping the known one", "error", err)
			return nil
		}
		log.Warn("failed to read a setting of the cluster", "error", err, "retry", pause.String())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("parse service CIDR: %w", err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}
