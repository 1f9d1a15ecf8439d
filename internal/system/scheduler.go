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
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/delegated"
	"skiff/internal/health"
	"skiff/internal/scheduler"
	"skiff/internal/scheduler/ask"
)

// schedulerDoor is where the API server lets questions to the scheduler in: it serves before there is a scheduler to ask.
type schedulerDoor struct {
	handler atomic.Pointer[http.Handler]
}

func (d *schedulerDoor) open(s *scheduler.Scheduler) {
	h := s.Handler()
	d.handler.Store(&h)
}

func (d *schedulerDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := d.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "the scheduler has not started yet", http.StatusServiceUnavailable)
}

// RunScheduler runs the scheduler alone, against an API server elsewhere, until ctx ends. It follows the cluster and answers questions
// also while another scheduler leads.
func RunScheduler(ctx context.Context, c config.Scheduler) error {
	file := &configv1.KubeSchedulerConfiguration{}
	if c.ConfigFile != "" {
		var err error
		if file, err = scheduler.ReadConfiguration(c.ConfigFile); err != nil {
			return err
		}
	}
	if c.Kubeconfig = cmp.Or(c.Kubeconfig, file.ClientConnection.Kubeconfig); c.Kubeconfig == "" {
		return errors.New("--kubeconfig: neither the flag nor --config says where the API server is")
	}
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	informers, events := client.NewInformers(remote), client.NewEventBroadcaster(remote)
	post := &watchpost{config: c.Serving, registry: newRegistry(), remote: remote, kubeconfig: c.Kubeconfig, log: log}
	metrics, err := scheduler.NewMetrics(post.registry)
	if err != nil {
		return err
	}
	if err := client.RegisterMetrics(post.registry); err != nil {
		return err
	}
	s, err := scheduler.New(scheduler.Config{Client: remote, Informers: informers, Events: events, Configuration: file, Metrics: metrics, Log: log})
	if err != nil {
		return err
	}
	post.paths, post.access = map[string]http.Handler{scheduler.Root: s.Handler()}, requestAccess
	post.checks = []health.Check{{Name: "sched-handler-sync", ReadinessOnly: true, Check: s.Synced}}
	run := s.Run
	if elected := file.LeaderElection.LeaderElect; c.LeaderElect && (elected == nil || *elected) {
		leader, err := election(cmp.Or(file.LeaderElection.ResourceName, "kube-scheduler"))
		if err != nil {
			return err
		}
		leader.Namespace = cmp.Or(file.LeaderElection.ResourceNamespace, leader.Namespace)
		leader.LeaseDuration, leader.RenewDeadline = file.LeaderElection.LeaseDuration.Duration, file.LeaderElection.RenewDeadline.Duration
		leader.RetryPeriod = file.LeaderElection.RetryPeriod.Duration
		post.checks = append(post.checks, health.Check{Name: "leaderElection", Check: leader.Check})
		run = func(ctx context.Context) error { return leader.Run(ctx, remote, nil, s.Run) }
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{post.run, informers.Run, events.Run, run} {
		group.Go(func() error { return wrap("scheduler", run(ctx)) })
	}
	return group.Wait()
}

// requestAccess is what a request asks for: a resource where its path names one, or else the path.
func requestAccess(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
	a := apiserver.RequestAttributes(r)
	if !a.ResourceRequest {
		return delegated.PathAccess(r)
	}
	return []authorizationv1.SubjectAccessReviewSpec{{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: a.Verb, Group: a.Group, Version: a.Version, Resource: a.Resource, Subresource: a.Subresource, Namespace: a.Namespace, Name: a.Name,
	}}}
}

// Why asks about a pod, named as NAME, pod/NAME or pods/NAME, and writes the answer.
func Why(ctx context.Context, c config.SchedulerQuery, target string, out io.Writer) error {
	kind, name, typed := strings.Cut(target, "/")
	if !typed {
		kind, name = "pod", target
	}
	if (kind != "pod" && kind != "pods" && kind != "po") || name == "" {
		return fmt.Errorf("%q is not a pod: name it pod/NAME", target)
	}
	asker, namespace, err := newAsker(c)
	if err != nil {
		return err
	}
	e, err := asker.Why(ctx, namespace, name)
	if err != nil {
		return err
	}
	return show(c.Output, out, e, func() error { return ask.PrintWhy(out, e) })
}

// WhatIf asks where the pods of a manifest would go and writes the answer.
func WhatIf(ctx context.Context, c config.SchedulerQuery, in io.Reader, out io.Writer) error {
	asker, namespace, err := newAsker(c)
	if err != nil {
		return err
	}
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("-f: %w", err)
		}
		defer file.Close()
		in = file
	}
	workloads, err := ask.ReadManifest(in, namespace)
	if err != nil {
		return err
	}
	if len(workloads) == 0 {
		return fmt.Errorf("-f: nothing in %s has pods", c.File)
	}
	results, err := asker.WhatIf(ctx, workloads, c.Nodes)
	if err != nil {
		return err
	}
	return show(c.Output, out, results, func() error { return ask.PrintWhatIf(out, results) })
}

func newAsker(c config.SchedulerQuery) (*ask.Client, string, error) {
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
	asker, err := ask.New(settings, ask.Elsewhere{URL: c.Scheduler, CAFile: c.SchedulerCA})
	return asker, cmp.Or(c.Namespace, namespace), err
}

// show writes an answer in the form that was asked for.
func show(form string, out io.Writer, answer any, table func() error) error {
	switch form {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	case "yaml":
		text, err := yaml.Marshal(answer)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	return table()
}
