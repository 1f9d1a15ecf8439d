package overlay

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

func TestClusterIsPublished(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := inprocess.Start(t, ctx)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ConfigMapNamespace}}
	if _, err := client.For[*corev1.Namespace](c).Create(ctx, namespace, client.WriteOptions{}); err != nil {
		t.Logf("create namespace: %v", err) // it may exist
	}
	want := Cluster{Backend: HostGW, CIDRs: prefixes("10.42.0.0/16", "fd42::/48")}
	done := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	go func() { done <- RunCluster(run, c, want, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waitForCluster(t, c, want)
	configMaps := client.For[*corev1.ConfigMap](c)
	object, err := configMaps.Get(ctx, ConfigMapNamespace, ConfigMapName)
	if err != nil {
		t.Fatal(err)
	}
	changed := object.DeepCopy()
	changed.Data[keyBackend] = string(VXLAN)
	if _, err := configMaps.Update(ctx, changed, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForCluster(t, c, want)
	if err := configMaps.Delete(ctx, ConfigMapNamespace, ConfigMapName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForCluster(t, c, want)
}

func waitForCluster(t *testing.T, c *client.Client, want Cluster) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		got, err := ReadCluster(t.Context(), c)
		if err == nil && got.Backend == want.Backend && slices.Equal(got.CIDRs, want.CIDRs) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster is %v, %v; want %v", got, err, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestParseCluster(t *testing.T) {
	for name, data := range map[string]map[string]string{
		"no data":         nil,
		"unknown backend": {keyBackend: "ipip"},
		"invalid CIDR":    {keyBackend: "vxlan", keyClusterCIDR: "10.42.0.0"},
	} {
		if c, err := ParseCluster(&corev1.ConfigMap{Data: data}); err == nil {
			t.Errorf("%s: %v, want an error", name, c)
		}
	}
}
