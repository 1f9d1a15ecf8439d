package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"skiff/test/cluster"
)

// TestWatch starts many watchers, on separate and on shared connections, that watch the same writes through each HTTP/2 server: every
// watcher gets every event once and in order, also when it resumes.
func TestWatch(t *testing.T) {
	t.Parallel()
	for _, server := range http2Servers {
		for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			t.Run(server+"/"+contentType, func(t *testing.T) {
				t.Parallel()
				c, err := cluster.Skiff(t.TempDir(), "--http2-server="+server)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(c.Stop)
				config, err := c.Config()
				if err != nil {
					t.Fatal(err)
				}
				config.ContentType, config.RateLimiter = contentType, flowcontrol.NewFakeAlwaysRateLimiter()
				watchWrites(t, config)
			})
		}
	}
}

func watchWrites(t *testing.T, config *rest.Config) {
	const watchers, objects = 20, 150
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := k.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Each object is created, changed and deleted.
	want := make([]string, 0, 3*objects)
	for i := range objects {
		name := fmt.Sprintf("c-%d", i)
		want = append(want, "ADDED "+name+" 1", "MODIFIED "+name+" 2", "DELETED "+name+" 2")
	}
	var group errgroup.Group
	for i := range watchers {
		client := k
		if i%2 == 1 { // a separate connection
			own := rest.CopyConfig(config)
			own.UserAgent = "watcher-" + strconv.Itoa(i)
			own.Dial = new(net.Dialer).DialContext // client-go shares connections between equal configurations
			if client, err = kubernetes.NewForConfig(own); err != nil {
				t.Fatal(err)
			}
		}
		group.Go(func() error { return expectEvents(ctx, client, list.ResourceVersion, want) })
	}
	for i := range objects {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d", i)}, Data: map[string]string{"generation": "1"}}
		created, err := k.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created.Data["generation"] = "2"
		if _, err := k.CoreV1().ConfigMaps("default").Update(ctx, created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := k.CoreV1().ConfigMaps("default").Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// expectEvents watches until it has all events. After a third of them it resumes from the last one it has, on a new watch.
func expectEvents(ctx context.Context, client kubernetes.Interface, version string, want []string) error {
	var got []string
	for stop := len(want) / 3; len(got) < len(want); stop = len(want) {
		w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			return err
		}
		for len(got) < stop {
			event, ok := <-w.ResultChan()
			if !ok {
				return fmt.Errorf("the watch ended after %d of %d events", len(got), len(want))
			}
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				return fmt.Errorf("event %s has a %T: %v", event.Type, event.Object, event.Object)
			}
			if cm.Name == "kube-root-ca.crt" {
				continue
			}
			version = cm.ResourceVersion
			got = append(got, fmt.Sprintf("%s %s %s", event.Type, cm.Name, cm.Data["generation"]))
		}
		w.Stop()
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the events differ: got %q", got)
	}
	return nil
}
