package system

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/kubelet/environment"
	"skiff/test/inprocess"
)

// A container is started with the Services that it gets variables of. No others are read, however many there are.
func TestServicesOf(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	names := []string{environment.KubernetesService}
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
	services := servicesOf(informer)
	if _, err := services(metav1.NamespaceDefault); err == nil {
		t.Error("services are listed before they have been read")
	}
	inprocess.Run(t, informers.Run)
	if err := informers.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]int{environment.OnlyKubernetes: 1, metav1.NamespaceDefault: len(names), metav1.NamespaceSystem: 0} {
		before := informers.ObjectsRead()
		got, err := services(namespace)
		if read := informers.ObjectsRead() - before; err != nil || len(got) != want || int(read) != want {
			t.Errorf("%q: %d services of %d read, %v; want %d", namespace, len(got), read, err, want)
		}
		if namespace == environment.OnlyKubernetes && len(got) == 1 && got[0].Name != environment.KubernetesService {
			t.Errorf("got the service %s", got[0].Name)
		}
	}
}
