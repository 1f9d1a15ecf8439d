package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"skiff/test/cluster"
)

const (
	nodePods      = 50
	nodeRounds    = 5
	nodePodsImage = "registry.k8s.io/pause:3.10.2"
)

// prepareNode builds the images and programs of measureNode.
func prepareNode(side string) error {
	if err := cluster.UseImages("pause"); err != nil {
		return err
	}
	if side == "skiff" {
		return nil
	}
	_, err := cluster.UpstreamNodePrograms()
	return err
}

// measureNode creates pods at once on one node and waits until all of them run, measures them while idle, and deletes them.
func measureNode(side, dir string, _ options) ([]Row, error) {
	if err := cluster.UseImages("pause"); err != nil {
		return nil, err
	}
	var c *cluster.Cluster
	var err error
	if side == "skiff" {
		c, err = cluster.SkiffNode(dir)
	} else {
		c, err = cluster.UpstreamNode(dir)
	}
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, options{})
	if err != nil {
		return nil, err
	}
	k, err := b.client(protobufType)
	if err != nil {
		return nil, err
	}
	time.Sleep(15 * time.Second)
	idle, err := c.Resident()
	if err != nil {
		return nil, err
	}
	memory := Row{Name: "control plane and kubelet idle: memory", Value: float64(idle) / (1 << 20), Unit: "MiB", Goal: 1. / 3}
	if side == "skiff" {
		memory.Limit = 150
	}
	b.rows = append(b.rows, memory)
	pods := k.CoreV1().Pods("default")
	// One pod first, as warm-up.
	if _, _, err := b.startPods(pods, "warm", 1); err != nil {
		return nil, err
	}
	// Short measurements on a shared host vary by a tenth, so the median of several rounds is used. The pods of the last round are
	// kept.
	used, wall := make([]time.Duration, nodeRounds), make([]time.Duration, nodeRounds)
	for i := range nodeRounds {
		if err := removePods(k); err != nil {
			return nil, err
		}
		if used[i], wall[i], err = b.startPods(pods, fmt.Sprint("p", i), nodePods); err != nil {
			return nil, err
		}
	}
	slices.Sort(used)
	slices.Sort(wall)
	b.add(fmt.Sprintf("%d pods at once on one node: until all run", nodePods), wall[nodeRounds/2].Seconds(), "s", 0.6)
	b.add("the same: CPU of control plane and kubelet per pod", float64(used[nodeRounds/2].Microseconds())/1000/nodePods, "ms", 1./4)
	time.Sleep(10 * time.Second) // let the work after the starts finish
	const idlePeriod = 20 * time.Second
	before, err := c.CPU()
	if err != nil {
		return nil, err
	}
	time.Sleep(idlePeriod)
	after, err := c.CPU()
	if err != nil {
		return nil, err
	}
	share := Row{Name: fmt.Sprintf("%d idle pods: control plane and kubelet", nodePods), Value: 100 * (after - before).Seconds() / idlePeriod.Seconds(), Unit: "% of a core", Goal: 1}
	if side == "skiff" {
		share.Limit = 1
	}
	b.rows = append(b.rows, share)
	began := time.Now()
	if err := removePods(k); err != nil {
		return nil, err
	}
	b.add("deleting them", time.Since(began).Seconds(), "s", 1)
	return b.rows, nil
}

// startPods creates pods and waits until all run.
func (b *bench) startPods(pods corev1client.PodInterface, name string, count int) (used, wall time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, err
	}
	changes, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return 0, 0, err
	}
	defer changes.Stop()
	return b.cpu(name, func() error {
		errs := make([]error, count)
		var creating sync.WaitGroup
		for i := range count {
			creating.Go(func() {
				_, errs[i] = pods.Create(ctx, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: nodePodsImage}}},
				}, metav1.CreateOptions{})
			})
		}
		creating.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		running := map[string]bool{}
		for event := range changes.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Modified && pod.Status.Phase == corev1.PodRunning {
				running[pod.Name] = true
			}
			if len(running) == count {
				return nil
			}
		}
		return fmt.Errorf("%d of %d pods run", len(running), count)
	})
}

// removePods deletes all pods and waits until they are gone.
func removePods(k clientset.Interface) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	pods, grace := k.CoreV1().Pods("default"), int64(1)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &grace}, metav1.ListOptions{}); err != nil {
		return err
	}
	for {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
