package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// startWithControllers starts a control plane with its controllers and without a scheduler, without client throttling: skiff in one
// process, upstream in three. The whole control plane is measured.
func startWithControllers(side, dir string, o options) (*bench, error) {
	const flag = "--disable-admission-plugins=ServiceAccount"
	var c *cluster.Cluster
	var err error
	switch side {
	case "skiff":
		c, err = cluster.Skiff(dir, flag, "--without=scheduler", fmt.Sprintf("--profiling=%t", o.Profiles != ""))
	case "upstream":
		if c, err = cluster.UpstreamAPI(dir, "", flag); err != nil {
			return nil, err
		}
		// The controller manager's own client limits are raised: only the API server limits requests.
		if err = c.ControllerManager("--kube-api-qps=5000", "--kube-api-burst=5000"); err != nil {
			c.Stop()
			return nil, err
		}
		c.Server = append(c.Server, c.Others...)
		c.Others = nil
	default:
		return nil, fmt.Errorf("unknown server %q", side)
	}
	if err != nil {
		return nil, err
	}
	b, err := newBench(c, o)
	if err != nil {
		c.Stop()
		return nil, err
	}
	return b, nil
}

// measureDeployment creates a deployment and waits until all its pods exist.
func measureDeployment(side, dir string, o options) ([]Row, error) {
	b, err := startWithControllers(side, dir, o)
	if err != nil {
		return nil, err
	}
	defer b.cluster.Stop()
	k, err := b.client(protobufType)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	// Warm-up: a small deployment opens connections, fills caches and shows that the controllers run.
	if err := deploy(ctx, k, "warm", 20); err != nil {
		return nil, err
	}
	time.Sleep(5 * time.Second)
	name := fmt.Sprintf("deployment of %d replicas", o.Replicas)
	used, wall, err := b.cpu(name, func() error { return deploy(ctx, k, "large", o.Replicas) })
	if err != nil {
		return nil, err
	}
	b.add(name+": until all pods exist", wall.Seconds()*1000, "ms", 1./4)
	b.add(name+": CPU of the whole control plane", float64(used.Milliseconds()), "ms", 1./4)
	return b.rows, nil
}

// deploy creates a deployment and waits until its pods exist. It lists one pod only: remainingItemCount has the number of the
// others, at almost no cost.
func deploy(ctx context.Context, k clientset.Interface, name string, replicas int) error {
	count := func() (int, error) {
		list, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || list.RemainingItemCount == nil {
			return len(list.Items), err
		}
		return len(list.Items) + int(*list.RemainingItemCount), nil
	}
	before, err := count()
	if err != nil {
		return err
	}
	labels := map[string]string{"app": name}
	if _, err := k.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("").Spec}}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		now, err := count()
		return now >= before+replicas, err
	})
}

// idleTime is how long an idle control plane is measured.
const idleTime = 60 * time.Second

// measureIdle fills a cluster with pods of deployments and measures what it uses while idle.
func measureIdle(side, dir string, o options) ([]Row, error) {
	b, err := startWithControllers(side, dir, o)
	if err != nil {
		return nil, err
	}
	defer b.cluster.Stop()
	k, err := b.client(protobufType)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	const each = 500
	for i := range o.Pods / each {
		if err := deploy(ctx, k, fmt.Sprint("idle-", i), each); err != nil {
			return nil, err
		}
	}
	// It is idle when two seconds use less than 200 ms of CPU. Then wait a little for slower periodic work.
	if err := wait.PollUntilContextTimeout(ctx, time.Second, 3*time.Minute, true, func(context.Context) (bool, error) {
		used, _, err := b.cpu("settle", func() error { time.Sleep(2 * time.Second); return nil })
		return used < 200*time.Millisecond, err
	}); err != nil {
		return nil, fmt.Errorf("the control plane does not become idle: %w", err)
	}
	time.Sleep(10 * time.Second)
	used, wall, err := b.cpu("idle", func() error { time.Sleep(idleTime); return nil })
	if err != nil {
		return nil, err
	}
	b.add(fmt.Sprintf("idle with %d pods: CPU", o.Pods), 100*used.Seconds()/wall.Seconds(), "% of a core", 1./4)
	n, err := b.cluster.Resident()
	b.add(fmt.Sprintf("idle with %d pods: resident memory", o.Pods), float64(n)/(1<<20), "MiB", 1./3)
	return b.rows, err
}
