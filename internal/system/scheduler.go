package system

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controller"
	"skiff/internal/delegated"
	"skiff/internal/health"
	"skiff/internal/scheduler"
	"skiff/internal/scheduler/query"
)

// deferredHandler is the HTTP handler of a component that starts after the server it is a path of.
type deferredHandler struct {
	handler atomic.Pointer[http.Handler]
}

// set begins to serve requests.
func (d *deferredHandler) set(h http.Handler) { d.handler.Store(&h) }

// ServeHTTP implements http.Handler.
func (d *deferredHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := d.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "the scheduler has not started yet", http.StatusServiceUnavailable)
}

// RunScheduler runs the scheduler alone until ctx is done. It follows the cluster and answers queries also while another scheduler leads.
func RunScheduler(ctx context.Context, c config.Scheduler) error {
	file := &configv1.KubeSchedulerConfiguration{}
	if c.ConfigFile != "" {
		var err error
		if file, err = scheduler.ReadConfiguration(c.ConfigFile); err != nil {
			return err
		}
	}
	if c.Kubeconfig = cmp.Or(c.Kubeconfig, file.ClientConnection.Kubeconfig); c.Kubeconfig == "" {
		return errors.New("--kubeconfig: required unless --config names a kubeconfig")
	}
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	for _, warning := range scheduler.Warnings(file) {
		log.Warn("ignored a field of the KubeSchedulerConfiguration", "warning", warning)
	}
	informers, events := client.NewInformers(remote), client.NewEventBroadcaster(remote).WithLog(log)
	endpoint := &componentServer{config: c.Serving, registry: newRegistry(nil), remote: remote, kubeconfig: c.Kubeconfig, log: log}
	metrics, err := scheduler.NewMetrics(endpoint.registry)
	if err != nil {
		return err
	}
	if err := client.RegisterMetrics(endpoint.registry); err != nil {
		return err
	}
	s, err := scheduler.New(scheduler.Config{Client: remote, Informers: informers, Events: events, Configuration: file, Metrics: metrics, Log: log})
	if err != nil {
		return err
	}
	endpoint.paths, endpoint.access = map[string]http.Handler{scheduler.Root: s.Handler(), scheduler.PodResourcesPath: collectorHandler(scheduler.PodResources(informers))}, requestAccess
	addSchedulerProfiling(endpoint.paths, file)
	endpoint.checks = []health.Check{{Name: "sched-handler-sync", ReadinessOnly: true, Check: s.Synced}}
	run := s.Run
	if elect := file.LeaderElection.LeaderElect; c.LeaderElect && (elect == nil || *elect) {
		election, err := schedulerElection(file)
		if err != nil {
			return err
		}
		endpoint.checks = append(endpoint.checks, health.Check{Name: "leaderElection", Check: election.Check})
		run = func(ctx context.Context) error { return election.Run(ctx, remote, nil, s.Run) }
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{endpoint.run, informers.Run, events.Run, run} {
		group.Go(func() error { return wrap("scheduler", run(ctx)) })
	}
	return group.Wait()
}

// collectorHandler serves the metrics of a collector alone.
func collectorHandler(c prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// addSchedulerProfiling adds the paths of profiles if the configuration enables them.
func addSchedulerProfiling(paths map[string]http.Handler, file *configv1.KubeSchedulerConfiguration) {
	if !ptr.Deref(file.EnableProfiling, false) {
		return
	}
	addProfiling(paths)
	if ptr.Deref(file.EnableContentionProfiling, false) {
		runtime.SetBlockProfileRate(1)
	}
}

// schedulerElection is the leader election of a configuration file.
func schedulerElection(file *configv1.KubeSchedulerConfiguration) (*controller.LeaderElection, error) {
	c := file.LeaderElection
	election, err := newLeaderElection(cmp.Or(c.ResourceName, "kube-scheduler"))
	if err != nil {
		return nil, err
	}
	election.Namespace = cmp.Or(c.ResourceNamespace, election.Namespace)
	election.LeaseDuration, election.RenewDeadline, election.RetryPeriod = c.LeaseDuration.Duration, c.RenewDeadline.Duration, c.RetryPeriod.Duration
	return election, nil
}

// requestAccess is the access that a request needs: to a resource if its path names one, otherwise to the path.
func requestAccess(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
	a := apiserver.RequestAttributes(r)
	if !a.ResourceRequest {
		return delegated.PathAccess(r)
	}
	return []authorizationv1.SubjectAccessReviewSpec{{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: a.Verb, Group: a.Group, Version: a.Version, Resource: a.Resource, Subresource: a.Subresource, Namespace: a.Namespace, Name: a.Name,
	}}}
}

// Why writes the explanation of a pod's placement. target is NAME, pod/NAME or pods/NAME.
func Why(ctx context.Context, c config.SchedulerQuery, target string, out io.Writer) error {
	kind, name, typed := strings.Cut(target, "/")
	if !typed {
		kind, name = "pod", target
	}
	if (kind != "pod" && kind != "pods" && kind != "po") || name == "" {
		return fmt.Errorf("%q is not a pod: expected pod/NAME", target)
	}
	client, namespace, err := newQueryClient(c)
	if err != nil {
		return err
	}
	e, err := client.Why(ctx, namespace, name)
	if err != nil {
		return err
	}
	return printResult(c.Output, out, e, func() error { return query.PrintWhy(out, e) })
}

// WhatIf writes where the pods of a manifest would be placed.
func WhatIf(ctx context.Context, c config.SchedulerQuery, in io.Reader, out io.Writer) error {
	client, namespace, err := newQueryClient(c)
	if err != nil {
		return err
	}
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("--filename: %w", err)
		}
		defer file.Close()
		in = file
	}
	workloads, err := query.ReadManifest(in, namespace)
	if err != nil {
		return err
	}
	if len(workloads) == 0 {
		return fmt.Errorf("--filename: %s has no pods or workloads", c.File)
	}
	results, err := client.WhatIf(ctx, workloads, c.Nodes)
	if err != nil {
		return err
	}
	return printResult(c.Output, out, results, func() error { return query.PrintWhatIf(out, results) })
}

func newQueryClient(c config.SchedulerQuery) (*query.Client, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
	settings, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("--kubeconfig: %w", err)
	}
	client, err := query.New(settings, query.SchedulerAddress{URL: c.Scheduler, CAFile: c.SchedulerCA})
	return client, cmp.Or(c.Namespace, namespace), err
}

// printResult writes a result in an output format.
func printResult(format string, out io.Writer, result any, table func() error) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	case "yaml":
		text, err := yaml.Marshal(result)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	return table()
}
