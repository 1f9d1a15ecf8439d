// Command algorithm measures how many pods per second upstream's scheduler decides about, without an API server: nodes and pods are
// added to its cache directly, and each decision is assumed before the next. It prints the numbers as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"skiff/test/workloads"
)

const nodes = 5000

func main() {
	klog.SetLogger(logr.Discard())
	rates := map[string]float64{}
	for i := range workloads.All {
		w := &workloads.All[i]
		rate, err := measure(w)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", w.Name, err)
			os.Exit(1)
		}
		rates[w.Name] = rate
	}
	if err := json.NewEncoder(os.Stdout).Encode(rates); err != nil {
		os.Exit(1)
	}
}

func measure(w *workloads.Workload) (rate float64, err error) {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	defer cancel()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}})
	factory := informers.NewSharedInformerFactory(client, 0)
	snapshot := cache.NewEmptySnapshot()
	recorder := events.NewFakeRecorder(1)
	s, err := upstream.New(ctx, client, factory, nil, profile.RecorderFactory(func(string) events.EventRecorderLogger { return recorder }), upstream.WithNodeInfoSnapshot(snapshot))
	if err != nil {
		return 0, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		return 0, err
	}
	logger := klog.FromContext(ctx)
	for i := range nodes {
		s.Cache.AddNode(logger, workloads.Node(i))
	}
	place := func(i int) error {
		pod := w.Pod(i)
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			return err
		}
		// Each decision begins with an update of the snapshot.
		if err := s.Cache.UpdateSnapshot(logger, snapshot); err != nil {
			return err
		}
		result, err := s.SchedulePod(ctx, s.Profiles[corev1.DefaultSchedulerName], framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
		if err != nil {
			return err
		}
		pod.Spec.NodeName = result.SuggestedHost
		return s.Cache.AssumePod(logger, pod)
	}
	for i := range w.First {
		if err := place(i); err != nil {
			return 0, err
		}
	}
	// A thousand pods are enough.
	const enough = 1000
	began := time.Now()
	for i := range enough {
		if err := place(w.First + i); err != nil {
			return 0, err
		}
	}
	return enough / time.Since(began).Seconds(), nil
}
