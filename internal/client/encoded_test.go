package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// An informer that keeps its objects encoded behaves as any other: what its users get is decoded.
func TestEncodedInformer(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		maps := client.For[*corev1.ConfigMap](c)
		labeled := func(name, value string) *corev1.ConfigMap {
			cm := configMap(name, map[string]string{"k": value, "secret": "x"})
			cm.Labels = map[string]string{"color": value}
			return cm
		}
		if _, err := maps.Create(ctx, labeled("listed", "red"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		informers := client.NewInformers(c)
		informer := client.InformerFor[*corev1.ConfigMap](informers)
		var mu sync.Mutex
		var events, metadataEvents []string
		record := func(list *[]string, text string) {
			mu.Lock()
			defer mu.Unlock()
			*list = append(*list, text)
		}
		synced, err := informer.AddMetadataHandlerWithSync(
			func(m client.Metadata) { record(&metadataEvents, "add "+m.GetName()+" "+m.GetLabels()["color"]) },
			func(old, m client.Metadata) {
				record(&metadataEvents, "update "+m.GetNamespace()+"/"+m.GetName()+" "+old.GetLabels()["color"]+" "+m.GetLabels()["color"])
			},
			func(m client.Metadata) {
				record(&metadataEvents, "delete "+m.GetName()+fmt.Sprint(len(m.GetAnnotations())))
			})
		if err := errors.Join(err,
			informer.SetEncoded(func(cm *corev1.ConfigMap) *corev1.ConfigMap {
				kept := *cm
				kept.Data, kept.ManagedFields = map[string]string{"k": cm.Data["k"]}, nil
				return &kept
			}),
			informer.AddIndex("data", func(cm *corev1.ConfigMap) []string { return []string{cm.Data["k"]} }),
			informer.AddMetadataIndex("color", func(m client.Metadata) []string { return []string{m.GetLabels()["color"]} }),
			informer.AddEventHandler(
				func(cm *corev1.ConfigMap) { record(&events, "add "+cm.Name+" "+cm.Data["k"]) },
				func(old, cm *corev1.ConfigMap) {
					record(&events, "update "+cm.Namespace+"/"+cm.Name+" "+old.Data["k"]+" "+cm.Data["k"])
				},
				func(cm *corev1.ConfigMap) { record(&events, "delete "+cm.Name+fmt.Sprint(len(cm.Annotations))) }),
		); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- informers.Run(ctx) }()
		waitFor(t, synced)
		if got, ok := informer.Get("default", "listed"); !ok || got.Data["k"] != "red" || got.ResourceVersion == "" {
			t.Errorf("got %+v, %v", got, ok)
		}
		updated, err := maps.Update(ctx, labeled("listed", "blue"), client.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool {
			got, _ := informer.Get("default", "listed")
			return got.ResourceVersion == updated.ResourceVersion
		})
		for _, index := range []string{"data", "color"} {
			blue, err := informer.ByIndex(index, "blue")
			red, redErr := informer.ByIndex(index, "red")
			if err := errors.Join(err, redErr); err != nil || len(red) != 0 || len(blue) != 1 || blue[0].Data["k"] != "blue" {
				t.Errorf("index %s: blue %v, red %v, %v", index, blue, red, err)
			}
		}
		selector := labels.SelectorFromSet(labels.Set{"color": "blue"})
		if list := informer.List("", selector); len(list) != 1 || list[0].Labels["color"] != "blue" {
			t.Errorf("list: %v", list)
		}
		if keys := informer.Keys(); !slices.Contains(keys, types.NamespacedName{Namespace: "default", Name: "listed"}) {
			t.Errorf("keys: %v", keys)
		}
		if cached, ok := informers.Cached(configMap("listed", nil)); !ok || cached.Object.(*corev1.ConfigMap).Data["k"] != "blue" {
			t.Errorf("cached: %+v, %v", cached, ok)
		}
		if err := maps.Delete(ctx, "default", "listed", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want := []string{"add listed red", "update default/listed red blue", "delete listed0"}
		waitFor(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(events, want) && slices.Equal(metadataEvents, want)
		})
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
