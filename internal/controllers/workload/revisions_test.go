package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHashesAreUpstreams: the hashes and names kube-controller-manager 1.37.1 gives these templates, without collisions, with none and with one. If one of
// them changed here, every deployment, stateful set and daemon set that changes hands would restart all its pods.
func TestHashesAreUpstreams(t *testing.T) {
	for _, test := range []struct {
		template  string
		hashes    string // of a replica set: collisions not counted, zero, one
		revisions string // of a stateful set's revision: zero and one collision
	}{
		{`{}`, "54f4c57dcb 98789f664 6554565b97", "db-56fdcc77f7 db-56fdcc77f6"},
		{`{"metadata":{"labels":{"app":"web"}}}`, "d446d945d 56d4fb766b 6d8cb69b9f", "db-59496889ff db-59496889fd"},
		{`{"metadata":{"labels":{"b":"2","a":"1"},"annotations":{"x":"y"}}}`, "6f4b8647cf 5547d9df7f 7d765b7d46", "db-58ddbf74cc db-58ddbf74cb"},
		{`{"spec":{"containers":[{"name":"web","image":"image:2"}]}}`, "5b764b765f d75987df5 799fd8dc98", "db-68d97c6458 db-68d97c6459"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"image:1"}]}}`, "6bbf4b678d 86698b7dd8 58fc59f465", "db-755c4969b7 db-755c4969b6"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"image:2"}]}}`, "6f5dbf7885 676bbbcb5c cb44495d8", "db-547ddb5bd4 db-547ddb5bd5"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx","command":["a","b"],"env":[{"name":"A","value":"1"}],"ports":[{"containerPort":80,"protocol":"TCP"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"},"limits":{"memory":"1Gi"}}}]}}`, "f48f694f7 7dfbd966f7 67745dfdb4", "db-5f496455c6 db-5f496455c7"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},"schedulerName":"default-scheduler","containers":[{"name":"web","image":"nginx","terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always","resources":{}}]}}`, "69899ccd4 65c978ffc6 7c86456849", "db-786f898bd7 db-786f898bd6"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"nodeSelector":{"zone":"a"},"tolerations":[{"key":"k","operator":"Exists","effect":"NoSchedule","tolerationSeconds":5}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"z","operator":"In","values":["a"]}]}]}}},"containers":[{"name":"c"}]}}`, "844b8f5597 df8fb4f89 7b676b9d4d", "db-db988f9fc db-db988f9fb"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"volumes":[{"name":"v","configMap":{"name":"c","defaultMode":420}},{"name":"e","emptyDir":{"sizeLimit":"1Gi"}}],"containers":[{"name":"c","volumeMounts":[{"name":"v","mountPath":"/v"}],"livenessProbe":{"httpGet":{"path":"/","port":8080},"periodSeconds":10},"readinessProbe":{"tcpSocket":{"port":"http"}}}]}}`, "844b549c84 54fdf8b9c6 6bb9b4f449", "db-58d5ccbd db-58d5ccbf"},
		{`{"metadata":{"labels":{"app":"web"}},"spec":{"initContainers":[{"name":"s","restartPolicy":"Always"}],"hostNetwork":true,"priority":100,"automountServiceAccountToken":false,"containers":[{"name":"c","securityContext":{"runAsUser":0,"privileged":false}}]}}`, "6cbb7c5cc5 64fdc8c85f 9764d8fdb", "db-64d6fddd78 db-64d6fddd79"},
	} {
		var tmpl corev1.PodTemplateSpec
		if err := json.Unmarshal([]byte(test.template), &tmpl); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join([]string{templateHash(&tmpl, nil), templateHash(&tmpl, new(int32(0))), templateHash(&tmpl, new(int32(1)))}, " "); got != test.hashes {
			t.Errorf("%s\nhashes %s, upstream's are %s", test.template, got, test.hashes)
		}
		patch, err := templatePatch(&tmpl)
		if err != nil {
			t.Fatal(err)
		}
		set := aStatefulSet(1)
		one := newRevision(set, statefulSetKind, revisionContent{labels: tmpl.Labels, patch: patch, number: 1, collisions: 0})
		two := newRevision(set, statefulSetKind, revisionContent{labels: tmpl.Labels, patch: patch, number: 1, collisions: 1})
		if got := one.Name + " " + two.Name; got != test.revisions {
			t.Errorf("%s\nrevisions %s, upstream's are %s", test.template, got, test.revisions)
		}
		back, err := templateOf(one)
		if err != nil || !sameTemplate(back, &tmpl) {
			t.Errorf("%s comes back as %+v, %v", test.template, back, err)
		}
	}
}

func TestTemplatePatch(t *testing.T) {
	for _, test := range []struct{ template, want string }{
		{`{}`, `{"spec":{"template":{"$patch":"replace","metadata":{},"spec":{"containers":null}}}}`},
		{`{"metadata":{"labels":{"b":"2","a":"1"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
			`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"a":"1","b":"2"}},"spec":{"containers":[{"image":"i","name":"c","resources":{}}]}}}}`},
		{`{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"hostNetwork":true}}`,
			`{"spec":{"template":{"$patch":"replace","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"containers":null,"hostNetwork":true}}}}`},
	} {
		var tmpl corev1.PodTemplateSpec
		if err := json.Unmarshal([]byte(test.template), &tmpl); err != nil {
			t.Fatal(err)
		}
		if got, err := templatePatch(&tmpl); err != nil || string(got) != test.want {
			t.Errorf("%s\n got %s, %v\nwant %s", test.template, got, err, test.want)
		}
	}
	for _, odd := range []string{"", "{", `{"spec":{"template":[]}}`, `{"spec":3}`} {
		r := revisionFor(t, aStatefulSet(1), 1)
		r.Data.Raw = []byte(odd)
		if _, err := templateOf(r); err == nil {
			t.Errorf("%q is a template", odd)
		}
	}
}

func TestNewRevision(t *testing.T) {
	long := strings.Repeat("x", 253)
	for _, test := range []struct {
		name string
		want int // how much of the name is left
	}{{"db", 2}, {long[:222], 222}, {long[:223], 223}, {long[:224], 223}, {long, 223}} {
		set := aStatefulSet(1, func(s *appsv1.StatefulSet) { s.Name = test.name; s.Annotations = map[string]string{"a": "1"} })
		labels := map[string]string{"app": "web"}
		r := newRevision(set, statefulSetKind, revisionContent{labels: labels, patch: []byte("{}"), number: 7, collisions: 0})
		hash := r.Labels["controller.kubernetes.io/hash"]
		if r.Name != test.name[:test.want]+"-"+hash || r.Revision != 7 || r.Namespace != "default" || r.Labels["app"] != "web" || r.Annotations["a"] != "1" || !metav1.IsControlledBy(r, set) || !bytes.Equal(r.Data.Raw, []byte("{}")) {
			t.Errorf("%d characters: %+v", len(test.name), r)
		}
		if len(labels) != 1 {
			t.Error("the template's labels were changed")
		}
	}
	if revisionHash([]byte("a"), 0) == revisionHash([]byte("b"), 0) || revisionHash([]byte("a"), 0) == revisionHash([]byte("a"), 1) {
		t.Error("different templates have one hash")
	}
}

func TestRevisionOrder(t *testing.T) {
	revision := func(name string, number int64, age time.Duration) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(age)}, Revision: number}
	}
	for _, test := range []struct {
		what string
		a, b *appsv1.ControllerRevision
	}{
		{"by number", revision("z", 1, 0), revision("a", 2, time.Hour)},
		{"by age", revision("z", 1, time.Hour), revision("a", 1, 0)},
		{"by name", revision("a", 1, 0), revision("b", 1, 0)},
	} {
		if compareRevisions(test.a, test.b) >= 0 || compareRevisions(test.b, test.a) <= 0 || compareRevisions(test.a, test.a) != 0 {
			t.Errorf("%s: %d and %d", test.what, compareRevisions(test.a, test.b), compareRevisions(test.b, test.a))
		}
	}
	for _, test := range []struct {
		numbers []int64
		want    int64
	}{{nil, 1}, {[]int64{1}, 2}, {[]int64{1, 2, 3}, 4}, {[]int64{3, 1, 2}, 4}, {[]int64{0}, 1}, {[]int64{7, 7}, 8}} {
		var all []*appsv1.ControllerRevision
		for i, n := range test.numbers {
			all = append(all, revision(fmt.Sprint(i), n, 0))
		}
		if got := nextRevision(all); got != test.want {
			t.Errorf("behind %v comes %d, want %d", test.numbers, got, test.want)
		}
	}
	one := revision("a", 1, 0)
	if c := withRevisionNumber(one, 5); c.Revision != 5 || one.Revision != 1 || c.Name != "a" {
		t.Errorf("%+v", c)
	}
}
