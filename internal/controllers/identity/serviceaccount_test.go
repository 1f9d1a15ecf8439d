package identity

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func namespaceIn(phase corev1.NamespacePhase) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: named("", "work"), Status: corev1.NamespaceStatus{Phase: phase}}
}

func TestDefaultAccount(t *testing.T) {
	for _, test := range []struct {
		what string
		view accountView
		made bool
	}{
		{"missing", accountView{namespaceIn(corev1.NamespaceActive), false}, true},
		{"there", accountView{namespaceIn(corev1.NamespaceActive), true}, false},
		{"missing where all ends", accountView{namespaceIn(corev1.NamespaceTerminating), false}, false},
		{"there where all ends", accountView{namespaceIn(corev1.NamespaceTerminating), true}, false},
		{"missing where nothing is known", accountView{namespaceIn(""), false}, false},
	} {
		plan := (&accounts{}).Reconcile(test.view)
		if plan.IsEmpty() == test.made {
			t.Errorf("%s: %+v", test.what, plan)
		}
		if test.made {
			w := plan.Steps[0].Writes[0]
			if account := w.Object.(*corev1.ServiceAccount); w.Verb != controller.Create || account.Namespace != "work" || account.Name != "default" || len(w.Ignore) != 1 || w.Ignore[0] != metav1.StatusReasonAlreadyExists {
				t.Errorf("%s: %+v", test.what, w)
			}
		}
	}
}

// TestEveryNamespaceHasAnAccountAndTheAuthority: both are made, kept, and made again.
func TestEveryNamespaceHasAnAccountAndTheAuthority(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(ServiceAccount, RootCA([]byte("authority")))()
		published := func() bool {
			m := world.Get[*corev1.ConfigMap](w, "work", rootCAName)
			return m.Data["ca.crt"] == "authority" && len(m.Data) == 1 && m.Annotations[descriptionAnnotation] == rootCADescription
		}
		w.Pass(time.Second)
		world.Get[*corev1.ServiceAccount](w, "default", "default") // namespaces that were there before
		world.Create(w, &corev1.Namespace{ObjectMeta: named("", "work")})
		w.Pass(time.Second)
		account := world.Get[*corev1.ServiceAccount](w, "work", "default")
		if !published() {
			t.Error("a new namespace has no authority")
		}
		world.Create(w, &corev1.ServiceAccount{ObjectMeta: named("work", "other")})
		w.Remove(&corev1.ServiceAccount{ObjectMeta: named("work", "other")})
		world.Edit(w, "work", rootCAName, func(m *corev1.ConfigMap) {
			m.Data = map[string]string{"ca.crt": "another", "more": "x"}
			m.Annotations["mine"] = "kept"
		})
		w.Pass(time.Second)
		if !published() || world.Get[*corev1.ConfigMap](w, "work", rootCAName).Annotations["mine"] != "kept" {
			t.Error("what somebody changed is not put right, or what is theirs is lost")
		}
		if !world.Gone[*corev1.ServiceAccount](w, "work", "other") || world.Get[*corev1.ServiceAccount](w, "work", "default").UID != account.UID {
			t.Error("another account came back, or the account is another")
		}
		w.Remove(&corev1.ConfigMap{ObjectMeta: named("work", rootCAName)})
		w.Remove(account)
		w.Pass(time.Second)
		if !published() || world.Get[*corev1.ServiceAccount](w, "work", "default").UID == account.UID {
			t.Error("what was deleted is not made again")
		}
		w.AssertSettled(ServiceAccount, RootCA([]byte("authority")))
	})
}
