package system

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

// Of the Services that other components have packed, only those that are asked for are read, however many there are.
func TestNodeServices(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	names := []string{"kubernetes"}
	for i := range 20 {
		names = append(names, fmt.Sprint("service-", i))
	}
	for _, name := range names {
		inprocess.Create(t, c, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"},
		})
	}
	informers := client.NewInformers(c)
	informer := client.InformerFor[*corev1.Service](informers)
	services := nodeServices{informer}
	_, err := services.List(metav1.NamespaceDefault)
	if _, other := services.Get(metav1.NamespaceDefault, "kubernetes"); err == nil || other == nil {
		t.Error("services are listed before they have been read")
	}
	inprocess.Run(t, informers.Run)
	if err := informers.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]int{metav1.NamespaceDefault: len(names), metav1.NamespaceSystem: 0} {
		before := informers.ObjectsRead()
		got, err := services.List(namespace)
		if read := informers.ObjectsRead() - before; err != nil || len(got) != want || int(read) != want {
			t.Errorf("%q: %d services of %d read, %v; want %d", namespace, len(got), read, err, want)
		}
	}
	before := informers.ObjectsRead()
	got, err := services.Get(metav1.NamespaceDefault, "kubernetes")
	if read := informers.ObjectsRead() - before; err != nil || got == nil || got.Name != "kubernetes" || read != 1 {
		t.Errorf("got %v of %d read, %v", got, read, err)
	}
	if got, err := services.Get(metav1.NamespaceSystem, "kubernetes"); err != nil || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}
