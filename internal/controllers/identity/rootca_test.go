package identity

import (
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
)

func TestRootCA(t *testing.T) {
	annotated := map[string]string{descriptionAnnotation: rootCADescription}
	right := map[string]string{"ca.crt": "authority"}
	published := func(data, annotations map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: rootCAName, ResourceVersion: "7", Annotations: annotations}, Data: data}
	}
	const active, ending = corev1.NamespaceActive, corev1.NamespaceTerminating
	for _, test := range []struct {
		what        string
		phase       corev1.NamespacePhase
		published   *corev1.ConfigMap
		verb        controller.Verb // "": nothing
		annotations map[string]string
	}{
		{"nothing is published", active, nil, controller.Create, annotated},
		{"nothing is published where all ends", ending, nil, "", nil},
		{"all is right", active, published(right, annotated), "", nil},
		{"all is right where all ends", ending, published(right, annotated), "", nil},
		{"another authority", active, published(map[string]string{"ca.crt": "old"}, annotated), controller.Update, annotated},
		{"another authority where all ends", ending, published(map[string]string{"ca.crt": "old"}, annotated), controller.Update, annotated},
		{"something more", active, published(map[string]string{"ca.crt": "authority", "x": "y"}, annotated), controller.Update, annotated},
		{"under another key", active, published(map[string]string{"CA": "authority"}, annotated), controller.Update, annotated},
		{"no data", active, published(nil, annotated), controller.Update, annotated},
		{"no annotations", active, published(right, nil), controller.Update, annotated},
		{"another description is left alone", active, published(right, map[string]string{descriptionAnnotation: "mine"}), "", nil},
		{"an empty description", active, published(right, map[string]string{descriptionAnnotation: "", "mine": "x"}), controller.Update, map[string]string{descriptionAnnotation: rootCADescription, "mine": "x"}},
		{"another description goes with another authority", active, published(nil, map[string]string{descriptionAnnotation: "mine"}), controller.Update, annotated},
	} {
		c := &rootCA{bundle: "authority"}
		var before *corev1.ConfigMap
		if test.published != nil {
			before = test.published.DeepCopy()
		}
		plan := c.Reconcile(rootCAView{namespace: namespaceIn(test.phase), published: test.published})
		if plan.IsEmpty() != (test.verb == "") {
			t.Errorf("%s: %+v", test.what, plan)
			continue
		}
		if test.verb == "" {
			continue
		}
		w := plan.Steps[0].Writes[0]
		m := w.Object.(*corev1.ConfigMap)
		if w.Verb != test.verb || m.Namespace != "work" || m.Name != "kube-root-ca.crt" || !maps.Equal(m.Data, right) || !maps.Equal(m.Annotations, test.annotations) {
			t.Errorf("%s: %s %+v", test.what, w.Verb, m)
		}
		if before != nil && (!maps.Equal(before.Data, test.published.Data) || !maps.Equal(before.Annotations, test.published.Annotations) || m.ResourceVersion != "7") {
			t.Errorf("%s: the map of the cache has changed, or its revision is lost", test.what)
		}
		if again := c.Reconcile(rootCAView{namespace: namespaceIn(corev1.NamespaceActive), published: m}); !again.IsEmpty() {
			t.Errorf("%s: a second sync changes %+v", test.what, again)
		}
	}
}

func TestPublishersWithoutAnAuthorityAreOff(t *testing.T) {
	for _, make := range []func([]byte) controller.Definition{RootCA, TrustBundle} {
		if d := make(nil); !d.DisabledByDefault {
			t.Errorf("%s is on", d.Name)
		} else if _, err := d.New(&controller.Setup{}); !errors.Is(err, errNoCA) {
			t.Errorf("%s: %v", d.Name, err)
		}
		if d := make([]byte("x")); d.DisabledByDefault {
			t.Errorf("%s is off", d.Name)
		}
	}
}
