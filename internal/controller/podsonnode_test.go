package controller_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

func TestPodsOnNode(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		informers := client.NewInformers(b.client)
		pods := client.InformerFor[*corev1.Pod](informers)
		// Several controllers add the index to the informer they share.
		for range 2 {
			if err := controller.IndexPodsByNode(pods); err != nil {
				t.Fatal(err)
			}
		}
		for name, node := range map[string]string{"a": "one", "b": "one", "c": "two", "d": ""} {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}
			if _, err := client.For[*corev1.Pod](b.client).Create(b.ctx, pod, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _ = informers.Run(b.ctx) }()
		if err := informers.WaitForSync(b.ctx); err != nil {
			t.Fatal(err)
		}
		for node, want := range map[string][]string{"one": {"a", "b"}, "two": {"c"}, "three": nil} {
			var names []string
			for _, pod := range controller.PodsOnNode(pods, node) {
				names = append(names, pod.Name)
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				t.Errorf("pods on %s: %v, not %v", node, names, want)
			}
		}
	})
}
