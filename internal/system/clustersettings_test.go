package system

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"
)

// TestClusterRecord: a node that has been part of its cluster starts before the API server answers, and again only if the cluster has other settings.
func TestClusterRecord(t *testing.T) {
	first := clusterSettings{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ClusterDomain: "cluster.local", Backend: "vxlan",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
	}
	other := first
	other.Backend = "wireguard"
	file := filepath.Join(t.TempDir(), "cluster.json")
	for _, row := range []struct {
		name    string
		current clusterSettings
		// before and after are the settings that the node runs with until the API server answers and then; nil: it does not run.
		before, after []clusterSettings
	}{
		{"first start", first, nil, []clusterSettings{first}},
		{"after a reboot", first, []clusterSettings{first}, []clusterSettings{first}},
		{"other settings", other, []clusterSettings{first}, []clusterSettings{first, other}},
		{"after another reboot", other, []clusterSettings{other}, []clusterSettings{other}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := make(chan struct{})
				var ran []clusterSettings
				running := 0
				r := &clusterRecord{
					file: file, log: slog.New(slog.DiscardHandler),
					read: func(ctx context.Context, known clusterSettings) (clusterSettings, error) {
						select {
						case <-answer:
							return row.current, nil
						case <-ctx.Done():
							return known, ctx.Err()
						}
					},
					run: func(ctx context.Context, settings clusterSettings) error {
						if running++; running != 1 {
							t.Error("two nodes run")
						}
						ran = append(ran, settings)
						<-ctx.Done()
						running--
						return nil
					},
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				synctest.Wait()
				if !reflect.DeepEqual(ran, row.before) {
					t.Errorf("before the API server answers the node runs with %v, want %v", ran, row.before)
				}
				close(answer)
				synctest.Wait()
				if !reflect.DeepEqual(ran, row.after) || running != 1 {
					t.Errorf("the node runs with %v (%d running), want %v", ran, running, row.after)
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
	r := &clusterRecord{file: file, log: slog.New(slog.DiscardHandler)}
	if err := errors.Join(r.remove(), r.remove()); err != nil {
		t.Error(err)
	}
	if settings, err := r.load(); settings != nil || err != nil {
		t.Errorf("after another cluster was joined: %v, %v", settings, err)
	}
}

// TestClusterRecordFailures: the node's error ends it, also while the API server does not answer, and a stop before the first answer is none.
func TestClusterRecordFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no cgroups")
		r := &clusterRecord{
			file: filepath.Join(t.TempDir(), "cluster.json"), log: slog.New(slog.DiscardHandler),
			read: func(ctx context.Context, known clusterSettings) (clusterSettings, error) {
				<-ctx.Done()
				return known, ctx.Err()
			},
			run: func(context.Context, clusterSettings) error { return failure },
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("stopped before the first answer: %v", err)
		}
		if err := r.save(clusterSettings{ClusterDomain: "cluster.local"}); err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); !errors.Is(err, failure) {
			t.Errorf("error %v, want %v", err, failure)
		}
	})
}
