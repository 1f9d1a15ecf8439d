package client

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// recorder is an informer that keeps the handler it gets.
type recorder struct {
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

func (r *recorder) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	r.handler = handler
	return registration{}, nil
}

type registration struct {
	cache.ResourceEventHandlerRegistration
}

// A handler that needs no former state of an object does not cause it to be decoded.
func TestFormerStateIsNotDecoded(t *testing.T) {
	current, err := encode(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	former := &encodedObject{names: "defaulta1", namespaceEnd: 7, nameEnd: 8, data: []byte("not decodable")}
	r := &recorder{}
	informer := Informer[*corev1.Service]{shared: r}
	var events string
	if _, err := informer.AddChangeHandlerWithSync(
		func(service *corev1.Service) { events += "changed " + service.Name + "\n" },
		func(service *corev1.Service) { events += "deleted " + service.Name + "\n" },
	); err != nil {
		t.Fatal(err)
	}
	r.handler.OnAdd(current, true)
	r.handler.OnUpdate(former, current)
	r.handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: current})
	if want := "changed a\nchanged a\ndeleted a\n"; events != want {
		t.Errorf("got\n%swant\n%s", events, want)
	}
	if _, err := informer.AddEventHandlerWithSync(nil, func(_, _ *corev1.Service) {}, nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the former state can be decoded")
		}
	}()
	r.handler.OnUpdate(former, current)
}
