package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// TestFairnessObjects compares the flow schemas and priority levels of a new cluster with upstream's: the same objects with the same
// specs, annotations, conditions and owners of fields. Then it changes or deletes one of each kind on both servers.
func TestFairnessObjects(t *testing.T) {
	t.Parallel()
	ours, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ours.Stop)
	theirs, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(theirs.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var clients []clientset.Interface
	for _, c := range []*cluster.Cluster{ours, theirs} {
		config, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, clientset.NewForConfigOrDie(config))
	}
	compare := func(when string) {
		t.Helper()
		var skiff, upstream []string
		for began := time.Now(); time.Since(began) < 90*time.Second; time.Sleep(500 * time.Millisecond) {
			skiff, upstream = fairnessObjects(ctx, t, clients[0]), fairnessObjects(ctx, t, clients[1])
			if slices.Equal(skiff, upstream) {
				return
			}
		}
		for _, line := range skiff {
			if !slices.Contains(upstream, line) {
				t.Errorf("%s only skiff has %s", when, line)
			}
		}
		for _, line := range upstream {
			if !slices.Contains(skiff, line) {
				t.Errorf("%s only upstream has %s", when, line)
			}
		}
	}
	compare("at first")
	for _, k := range clients {
		schemas, levels := k.FlowcontrolV1().FlowSchemas(), k.FlowcontrolV1().PriorityLevelConfigurations()
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// A level that flow schemas refer to, a suggested schema that its owner maintains, one that the server maintains, a
		// mandatory one.
		check(levels.Delete(ctx, "workload-low", metav1.DeleteOptions{}))
		_, err := schemas.Patch(ctx, "service-accounts", "application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}},"spec":{"matchingPrecedence":8000}}`), metav1.PatchOptions{FieldManager: "me"})
		check(err)
		_, err = schemas.Patch(ctx, "system-nodes", "application/merge-patch+json", []byte(`{"spec":{"matchingPrecedence":501}}`), metav1.PatchOptions{FieldManager: "me"})
		check(err)
		check(schemas.Delete(ctx, "catch-all", metav1.DeleteOptions{}))
		_, err = schemas.Create(ctx, &flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: "lost"},
			Spec:       flowcontrolv1.FlowSchemaSpec{PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "nowhere"}},
		}, metav1.CreateOptions{FieldManager: "me"})
		check(err)
	}
	// Both restore it within a minute.
	for _, k := range clients {
		eventually(ctx, t, "the mandatory schema is back", func(ctx context.Context) (bool, error) {
			s, err := k.FlowcontrolV1().FlowSchemas().Get(ctx, "catch-all", metav1.GetOptions{})
			return err == nil && len(s.Status.Conditions) == 1, nil
		})
	}
	compare("after they were changed")
}

// fairnessObjects are all flow schemas and priority levels, a line each, without timestamps and random values.
func fairnessObjects(ctx context.Context, t *testing.T, k clientset.Interface) []string {
	t.Helper()
	schemas, err := k.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	levels, err := k.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	add := func(kind string, meta metav1.ObjectMeta, spec, status any) {
		owners := []string{}
		for _, entry := range meta.ManagedFields {
			owners = append(owners, entry.Manager+" "+string(entry.Operation)+" "+entry.Subresource+" "+entry.FieldsV1.String())
		}
		slices.Sort(owners)
		data, err := json.Marshal([]any{kind, meta.Name, meta.Generation, meta.Annotations, meta.Labels, spec, status, owners})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(data))
	}
	for _, s := range schemas.Items {
		for i := range s.Status.Conditions {
			s.Status.Conditions[i].LastTransitionTime = metav1.Time{}
		}
		add("FlowSchema", s.ObjectMeta, s.Spec, s.Status)
	}
	for _, l := range levels.Items {
		add("PriorityLevelConfiguration", l.ObjectMeta, l.Spec, l.Status)
	}
	slices.Sort(lines)
	return lines
}
