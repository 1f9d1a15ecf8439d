package kubelet

import (
	"context"
	"testing"

	tracingapi "k8s.io/component-base/tracing/api/v1"

	"skiff/internal/tracing"
	"skiff/internal/tracing/tracingtest"
)

// The syncs of a pod have upstream's spans.
func TestTracing(t *testing.T) {
	collector := tracingtest.Start(t)
	provider, err := tracing.New(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &collector.Endpoint, SamplingRatePerMillion: new(int32(1000000))},
		tracing.Options{Service: "kubelet", InstanceID: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	b := newTestKubelet(t)
	b.stop()
	b.config.Tracing = provider
	b.start()
	pod := b.until(b.create(regular("a")), "running", running)
	b.delete(pod, 0)
	b.gone(pod)
	b.eventually("the pod's worker to end", func() bool { return len(b.kubelet.listWorkers()) == 0 })
	b.stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := provider.Run(ctx); err != nil {
		t.Fatal(err)
	}
	spans := collector.Spans()
	for _, name := range []string{"syncPod", "syncTerminatingPod", "syncTerminatedPod"} {
		if spans[name] == nil {
			t.Errorf("no span %s", name)
			continue
		}
		found := ""
		for _, a := range spans[name].Attributes {
			if a.Key == "k8s.pod.uid" {
				found = a.Value.GetStringValue()
			}
		}
		if found != string(pod.UID) {
			t.Errorf("span %s is of pod %q, want %q", name, found, pod.UID)
		}
	}
	if service := collector.Service("syncPod"); service != "kubelet" {
		t.Errorf("service %q", service)
	}
}
