package cleanup

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

func TestWhatAResourceCan(t *testing.T) {
	r := resource{verbs: []string{"delete", "list", "watch"}}
	for verbs, want := range map[string]bool{"delete": true, "delete,list": true, "list,watch,delete": true, "deletecollection": false, "delete,create": false} {
		if got := r.can(strings.Split(verbs, ",")...); got != want {
			t.Errorf("%s: %v", verbs, got)
		}
	}
	if !r.can() || (resource{}).can("list") {
		t.Error("nothing can be done, or everything")
	}
}

func TestResourcesOfAServer(t *testing.T) {
	group := func(name string, versions ...string) string {
		var all []string
		for _, v := range versions {
			all = append(all, fmt.Sprintf(`{"groupVersion":"%s/%s","version":%q}`, name, v, v))
		}
		return fmt.Sprintf(`{"name":%q,"versions":[%s],"preferredVersion":%s}`, name, strings.Join(all, ","), all[0])
	}
	list := func(groupVersion string, resources ...string) string {
		var all []string
		for _, r := range resources {
			all = append(all, fmt.Sprintf(`{"name":%q,"kind":"K","namespaced":%v,"verbs":["list","delete"]}`, r, !strings.HasPrefix(r, "cluster")))
		}
		return fmt.Sprintf(`{"kind":"APIResourceList","groupVersion":%q,"resources":[%s]}`, groupVersion, strings.Join(all, ","))
	}
	groups := func(all ...string) []string {
		return []string{`{"kind":"APIGroupList","groups":[` + strings.Join(all, ",") + `]}`}
	}
	core, noCore := []string{`{"kind":"APIVersions","versions":["v1"]}`}, []string{`{"kind":"APIVersions","versions":[]}`}
	for _, test := range []struct {
		what      string
		responses map[string][]string
		want      string
		err       func(error) bool
	}{
		{"a server with nothing", map[string][]string{"GET /api": noCore, "GET /apis": groups()}, "", nil},
		{"the core group", map[string][]string{"GET /api": core, "GET /apis": groups(), "GET /api/v1": {list("v1", "pods", "cluster-nodes")}}, "/v1/cluster-nodes /v1/pods*", nil},
		{"the preferred version counts", map[string][]string{"GET /api": noCore, "GET /apis": groups(group("a", "v2", "v1")), "GET /apis/a/v2": {list("a/v2", "things")}, "GET /apis/a/v1": {list("a/v1", "things", "older")}}, "a/v1/older* a/v2/things*", nil},
		{"a group is away", map[string][]string{"GET /api": core, "GET /apis": groups(group("a", "v1")), "GET /api/v1": {list("v1", "pods")}, "GET /apis/a/v1": {refusal(503, metav1.StatusReasonServiceUnavailable, "away")}}, "/v1/pods*",
			func(err error) bool { return discovery.IsGroupDiscoveryFailedError(err) }},
	} {
		metadataClient, _ := playing(t, test.responses)
		resources, err := metadataClient.resources(t.Context())
		var got []string
		for _, r := range resources {
			text := r.Group + "/" + r.Version + "/" + r.Resource
			if r.namespaced {
				text += "*"
			}
			if got = append(got, text); !r.can("list", "delete") || r.kind != "K" {
				t.Errorf("%s: %+v", test.what, r)
			}
		}
		if slices.Sort(got); strings.Join(got, " ") != test.want || (err != nil) != (test.err != nil) || err != nil && !test.err(err) {
			t.Errorf("%s: %v, %v; want %s", test.what, got, err, test.want)
		}
	}
}

// TestListsComeInPages: all of them are read.
func TestListsComeInPages(t *testing.T) {
	page := func(next string, names ...string) string {
		return strings.Replace(listing(names...), `"metadata":{}`, `"metadata":{"continue":"`+next+`"}`, 1)
	}
	metadataClient, heard := playing(t, map[string][]string{"GET /apis/example.com/v1/namespaces/work/widgets": {page("x", "a", "b"), page("y", "c"), page("", "d")}, "GET /apis/example.com/v1/widgets": {refusal(500, metav1.StatusReasonInternalError, "no")}})
	items, err := metadataClient.list(t.Context(), widgets, "work")
	if err != nil || len(items) != 4 || items[3].Name != "d" || len(heard.asked) != 3 {
		t.Errorf("%v, %v after %q", items, err, heard.asked)
	}
	if items, err := metadataClient.list(t.Context(), widgets, ""); err == nil || items != nil {
		t.Errorf("a list that fails: %v", items)
	}
}

// TestOnlyOwnershipIsKept: every object of the cluster is in memory, so nothing else may be.
func TestOnlyOwnershipIsKept(t *testing.T) {
	whole := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "K"}, ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", UID: "u", ResourceVersion: "7", OwnerReferences: []metav1.OwnerReference{{UID: "o"}},
		Finalizers: []string{"f"}, DeletionTimestamp: new(metav1.NewTime(noon)), Labels: map[string]string{"l": "x"}, Annotations: map[string]string{"a": "x"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
	kept, err := stripToOwnership(whole)
	if err != nil {
		t.Fatal(err)
	}
	m := kept.(*metav1.PartialObjectMetadata)
	if m.Labels != nil || m.Annotations != nil || m.ManagedFields != nil || len(m.OwnerReferences) != 1 || m.Finalizers[0] != "f" || m.DeletionTimestamp == nil || m.UID != types.UID("u") || m.Namespace != "n" || m.Name != "a" || m.ResourceVersion != "7" {
		t.Errorf("%+v", m)
	}
	if whole.Labels == nil {
		t.Error("the object itself has changed")
	}
	if other, err := stripToOwnership("x"); err != nil || other != "x" {
		t.Errorf("something else: %v, %v", other, err)
	}
}
