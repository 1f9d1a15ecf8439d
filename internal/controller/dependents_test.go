package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var nodeKind = corev1.SchemeGroupVersion.WithKind("ReplicationController")

func TestClaim(t *testing.T) {
	now := metav1.Now()
	owner := &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "owner"}}
	leaving := owner.DeepCopy()
	leaving.DeletionTimestamp = &now
	dependent := func(controller types.UID, app string) *corev1.Pod {
		p := pod("p")
		p.Labels = map[string]string{"app": app}
		if controller != "" {
			p.OwnerReferences = []metav1.OwnerReference{{UID: controller, Controller: new(true), Name: "x"}}
		}
		return p
	}
	elsewhere, ending := dependent("", "web"), dependent("", "web")
	elsewhere.Namespace = "other"
	ending.DeletionTimestamp = &now
	const adopted = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ReplicationController","name":"web","uid":"owner","controller":true,"blockOwnerDeletion":true}],"uid":"uid-p"}}`
	const released = `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"owner"}],"uid":"uid-p"}}`
	for _, test := range []struct {
		what  string
		owner *corev1.ReplicationController
		pod   *corev1.Pod
		mine  bool
		patch string
	}{
		{"mine", owner, dependent("owner", "web"), true, ""},
		{"another's", owner, dependent("other", "web"), false, ""},
		{"an orphan that matches", owner, dependent("", "web"), true, adopted},
		{"an orphan that does not", owner, dependent("", "db"), false, ""},
		{"mine, no longer matching", owner, dependent("owner", "db"), false, released},
		{"an orphan elsewhere", owner, elsewhere, false, ""},
		{"an orphan that is ending", owner, ending, false, ""},
		{"a leaving owner keeps what it has", leaving, dependent("owner", "web"), true, ""},
		{"a leaving owner does not release", leaving, dependent("owner", "db"), false, ""},
		{"a leaving owner does not adopt", leaving, dependent("", "web"), false, ""},
	} {
		var plan Plan
		mine := Claim(&plan, Claimer{Owner: test.owner, Kind: nodeKind}, func(p *corev1.Pod) bool { return p.Labels["app"] == "web" }, []*corev1.Pod{test.pod})
		if slices.Contains(mine, test.pod) != test.mine {
			t.Errorf("%s: mine %v", test.what, mine)
		}
		var patch string
		if len(plan.Steps) > 0 {
			patch = string(plan.Steps[0].Writes[0].Patch)
			if (plan.Steps[0].Recheck != nil) != (patch == adopted) {
				t.Errorf("%s: only adoption confirms its owner: %+v", test.what, plan.Steps)
			}
		}
		if patch != test.patch {
			t.Errorf("%s: patch %s", test.what, patch)
		}
	}
	var plan Plan
	Claim(&plan, Claimer{Owner: owner, Kind: nodeKind, Finalizers: []string{"f"}}, func(p *corev1.Pod) bool { return p.Labels["app"] == "web" }, []*corev1.Pod{dependent("", "web"), dependent("owner", "db")})
	if got := string(plan.Steps[0].Writes[0].Patch); got != `{"metadata":{"$deleteFromPrimitiveList/finalizers":["f"],"ownerReferences":[{"$patch":"delete","uid":"owner"}],"uid":"uid-p"}}` {
		t.Errorf("release with a finalizer: %s", got)
	}
	if got := string(plan.Steps[1].Writes[0].Patch); got != `{"metadata":{"finalizers":["f"],"ownerReferences":[{"apiVersion":"v1","kind":"ReplicationController","name":"web","uid":"owner","controller":true,"blockOwnerDeletion":true}],"uid":"uid-p"}}` {
		t.Errorf("adoption with a finalizer: %s", got)
	}
}
