package core

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// evictionClient records how pods were deleted, and checks the resourceVersion in a deletion's preconditions.
type evictionClient struct {
	*memoryClient
	deletions []metav1.DeleteOptions
	marks     []corev1.PodCondition
	// beforeDelete runs before each deletion.
	beforeDelete func()
}

func (e *evictionClient) Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error {
	if e.beforeDelete != nil {
		e.beforeDelete()
	}
	obj, err := e.Get(ctx, resource, namespace, name)
	if err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(resource, name, errors.New("the version differs"))
	}
	e.deletions = append(e.deletions, *options)
	e.marks = obj.(*corev1.Pod).Status.Conditions
	if len(options.DryRun) > 0 {
		return nil
	}
	return e.memoryClient.Delete(ctx, resource, namespace, name, options)
}

func budget(name string, changes ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 2, CurrentHealthy: 3, DesiredHealthy: 1, ExpectedPods: 3},
	}
	for _, change := range changes {
		change(b)
	}
	return b
}

func allowed(n int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = n }
}

// readyPod is a pod that a budget counts.
func readyPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	return testPod(append([]func(*corev1.Pod){podSpec(`nodeName: node-1`), podStatus(`{phase: Running, conditions: [{type: Ready, status: "True"}]}`),
		func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }}, changes...)...)
}

var unready = podStatus(`conditions: [{type: Ready, status: "False"}]`)

func evict(client kind.Client, req *kind.Request, options *metav1.DeleteOptions) error {
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, DeleteOptions: options}
	response, err := subresource(Pod, "eviction").Create(context.Background(), client, req, types.NamespacedName{Namespace: "default", Name: "p"}, eviction)
	if err == nil && !succeeded(response) {
		return errors.New("no success")
	}
	return err
}

func TestEviction(t *testing.T) {
	policy := func(p policyv1.UnhealthyPodEvictionPolicyType) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &p }
	}
	unhealthy := func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy, b.Status.DesiredHealthy = 1, 2 }
	condition := func(reason, message string) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) {
			b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
		}
	}
	const needs = "The disruption budget b needs 2 healthy pods and has 1 currently"
	for _, c := range []struct {
		name    string
		pod     *corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
		code    int32
		cause   string
		left    int32 // disruptions allowed afterwards
	}{
		{name: "no budget", pod: readyPod()},
		{name: "a budget for others", pod: readyPod(func(p *corev1.Pod) { p.Labels = nil }), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0))}},
		{name: "a broken budget", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), func(b *policyv1.PodDisruptionBudget) {
			b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		})}},
		{name: "a budget that can spare it", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b")}, left: 1},
		{name: "the last to spare", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(1))}},
		{name: "a spent budget", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), unhealthy)}, code: 429, cause: needs},
		{name: "a spent budget, healthy", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0))}, code: 429, cause: "The disruption budget b does not allow evicting pods currently"},
		{name: "a spent budget that says why", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), condition("Why", "because"))}, code: 429, cause: "The disruption budget b does not allow evicting pods currently (Why): because"},
		{name: "a budget that failed", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), unhealthy, condition(policyv1.SyncFailedReason, "broken"))}, code: 429, cause: "The disruption budget b does not allow evicting pods currently because it failed sync: broken"},
		{name: "a budget that is not computed yet", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })}, code: 429, cause: "The disruption budget b is still being processed by the server.", left: 2},
		{name: "less than nothing", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(-1))}, code: 403, cause: "The disruption budget b does not allow evicting pods currently: pdb disruptions allowed is negative", left: -1},
		{name: "too many at once", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{}
			for i := range 2001 {
				b.Status.DisruptedPods[strings.Repeat("x", i+1)] = metav1.Time{}
			}
		})}, code: 403, cause: "The disruption budget b does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller", left: 2},
		{name: "two budgets", pod: readyPod(), budgets: []*policyv1.PodDisruptionBudget{budget("b"), budget("c")}, code: 500, left: 2},
		{name: "unready, budget healthy", pod: readyPod(unready), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0))}},
		{name: "unready, budget unhealthy", pod: readyPod(unready), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), unhealthy)}, code: 429, cause: needs},
		{name: "unready, budget unhealthy but does not mind", pod: readyPod(unready), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), unhealthy, policy(policyv1.AlwaysAllow))}},
		{name: "unready, budget minds", pod: readyPod(unready), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0), unhealthy, policy(policyv1.IfHealthyBudget))}, code: 429, cause: needs},
		{name: "pending", pod: readyPod(podStatus(`phase: Pending`)), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0))}},
		{name: "failed", pod: readyPod(podStatus(`phase: Failed`)), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0))}},
		{name: "going", pod: readyPod(func(p *corev1.Pod) { p.DeletionTimestamp = &testNow.Now }), budgets: []*policyv1.PodDisruptionBudget{budget("b", allowed(0))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			objs := []kind.Object{c.pod}
			for _, b := range c.budgets {
				objs = append(objs, b)
			}
			client := &evictionClient{memoryClient: clientWith(t, objs...)}
			err := evict(client, testNow, nil)
			checkRefusal(t, err, c.code, c.cause)
			if gone := len(client.deletions) == 1; gone != (c.code == 0) {
				t.Errorf("deletions: %v", client.deletions)
			}
			if c.code == 0 {
				checkMarked(t, client.marks)
			}
			if len(c.budgets) > 0 {
				after := storedBudget(t, client)
				if after.Status.DisruptionsAllowed != c.left {
					t.Errorf("the budget allows %d", after.Status.DisruptionsAllowed)
				}
				_, noted := after.Status.DisruptedPods["p"]
				if spent := c.budgets[0].Status.DisruptionsAllowed != c.left; noted != spent {
					t.Errorf("disrupted pods: %v", after.Status.DisruptedPods)
				}
			}
		})
	}
}

func storedBudget(t *testing.T, client kind.Client) *policyv1.PodDisruptionBudget {
	t.Helper()
	obj, err := client.Get(context.Background(), budgetResource, "default", "b")
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*policyv1.PodDisruptionBudget)
}

func checkRefusal(t *testing.T, err error, code int32, cause string) {
	t.Helper()
	if code == 0 {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != code {
		t.Fatalf("%v, want code %d", err, code)
	}
	if code == 429 && !strings.Contains(err.Error(), wouldViolate) {
		t.Errorf("message %q", err)
	}
	if cause != "" {
		causes := status.Status().Details.Causes
		if len(causes) != 1 || causes[0].Type != "DisruptionBudget" || causes[0].Message != cause {
			t.Errorf("causes %v, want %q", causes, cause)
		}
	}
}

func checkMarked(t *testing.T, conditions []corev1.PodCondition) {
	t.Helper()
	for _, condition := range conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue && condition.Reason == "EvictionByEvictionAPI" && condition.Message == "Eviction API: evicting" {
			return
		}
	}
	t.Errorf("the pod does not know why it goes: %v", conditions)
}

func TestEvictionLastToSpare(t *testing.T) {
	client := &evictionClient{memoryClient: clientWith(t, readyPod(), budget("b", allowed(1)))}
	if err := evict(client, testNow, nil); err != nil {
		t.Fatal(err)
	}
	condition := meta.FindStatusCondition(storedBudget(t, client).Status.Conditions, policyv1.DisruptionAllowedCondition)
	if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != policyv1.InsufficientPodsReason {
		t.Errorf("condition %v", condition)
	}
}

func TestEvictionDryRun(t *testing.T) {
	for _, c := range []struct {
		name    string
		req     *kind.Request
		options *metav1.DeleteOptions
	}{
		{"of the request", &kind.Request{Now: testNow.Now, DryRun: true}, nil},
		{"of the options", testNow, &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}},
	} {
		client := &evictionClient{memoryClient: clientWith(t, readyPod(), budget("b"))}
		if err := evict(client, c.req, c.options); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(client.deletions) != 1 || len(client.deletions[0].DryRun) != 1 || len(storedPod(t, client).Status.Conditions) != 1 || storedBudget(t, client).Status.DisruptionsAllowed != 2 {
			t.Errorf("%s: not without effect", c.name)
		}
		spent := &evictionClient{memoryClient: clientWith(t, readyPod(), budget("b", allowed(0)))}
		if err := evict(spent, c.req, c.options); !apierrors.IsTooManyRequests(err) {
			t.Errorf("%s of what cannot be: %v", c.name, err)
		}
	}
}

func TestEvictionPreconditions(t *testing.T) {
	for _, c := range []struct {
		name    string
		options *metav1.DeleteOptions
		want    string
	}{
		{"its UID", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To[types.UID]("uid-1")}}, ""},
		{"another UID", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To[types.UID]("other")}}, "the UID in the precondition (other) does not match"},
		{"its version", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("1")}}, ""},
		{"another version", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("77")}}, "the ResourceVersion in the precondition (77) does not match"},
		{"a dangerous option", &metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: ptr.To(true)}, "can not be set for pod eviction, try after removing the option"},
	} {
		for _, phase := range []string{`phase: Running`, `phase: Pending`} {
			client := &evictionClient{memoryClient: clientWith(t, readyPod(podStatus(phase)))}
			err := evict(client, testNow, c.options)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", c.name, phase, err)
			}
		}
	}
	client := clientWith(t, readyPod())
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	if _, err := subresource(Pod, "eviction").Create(context.Background(), client, testNow, types.NamespacedName{Namespace: "default", Name: "p"}, eviction); !apierrors.IsBadRequest(err) {
		t.Errorf("another name: %v", err)
	}
	if err := evict(clientWith(t), testNow, nil); !apierrors.IsNotFound(err) {
		t.Errorf("no pod: %v", err)
	}
}

// TestEvictionContention: a pod that is written while it is evicted.
func TestEvictionContention(t *testing.T) {
	touch := func(client *evictionClient, times int) {
		client.beforeDelete = func() {
			if times--; times >= 0 {
				_, _ = client.Update(context.Background(), podResource, "default", "p", func(kind.Object) error { return nil })
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		client := &evictionClient{memoryClient: clientWith(t, readyPod(podStatus(`phase: Pending`)))}
		touch(client, 3)
		if err := evict(client, testNow, nil); err != nil || len(client.deletions) != 1 {
			t.Errorf("a pending pod: %v", err)
		}
		client = &evictionClient{memoryClient: clientWith(t, readyPod(podStatus(`phase: Pending`)))}
		touch(client, evictionAttempts)
		if err := evict(client, testNow, nil); !apierrors.IsConflict(err) {
			t.Errorf("a pending pod that is never left alone: %v", err)
		}
		client = &evictionClient{memoryClient: clientWith(t, readyPod(unready), budget("b", allowed(0)))}
		touch(client, 1)
		if err := evict(client, testNow, nil); !apierrors.IsTooManyRequests(err) {
			t.Errorf("an unready pod may have become ready: %v", err)
		}
	})
}
