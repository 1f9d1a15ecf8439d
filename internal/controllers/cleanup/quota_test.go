package cleanup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/quota"
	"skiff/test/inprocess"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = apiresource.MustParse(pairs[i+1])
	}
	return list
}

func TestQuotaIsAddedUp(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, ResourceQuota)
	create(t, c, thing("default", "before"))
	create(t, c, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "limits"},
		Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods", "5", "requests.cpu", "2", "configmaps", "10", "count/deployments.apps", "3", "count/widgets.example.com", "1")}})
	used := func(want ...string) {
		t.Helper()
		expected := amounts(want...)
		var status corev1.ResourceQuotaStatus
		eventually(t, "the quota says what is used", func() bool {
			found, err := client.For[*corev1.ResourceQuota](c).Get(t.Context(), "default", "limits")
			if err != nil {
				t.Fatal(err)
			}
			status = found.Status
			return quota.Equal(status.Used, expected) && quota.Equal(status.Hard, found.Spec.Hard)
		})
	}
	used("pods", "0", "requests.cpu", "0", "configmaps", "1", "count/deployments.apps", "0")
	pod := podOf("default", "pod")
	pod.Spec.Containers[0].Resources.Requests = amounts("cpu", "500m")
	create(t, c, pod)
	used("pods", "1", "requests.cpu", "500m", "configmaps", "1", "count/deployments.apps", "0")
	zero := int64(0)
	if err := client.For[*corev1.Pod](c).Delete(t.Context(), "default", "pod", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	if err := client.For[*corev1.ConfigMap](c).Delete(t.Context(), "default", "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("pods", "0", "requests.cpu", "0", "configmaps", "0", "count/deployments.apps", "0")
}

func TestRecounted(t *testing.T) {
	for _, test := range []struct {
		what             string
		hard, status     corev1.ResourceList
		used, sum, after corev1.ResourceList
		changed          bool
	}{
		{"new", amounts("pods", "1"), nil, nil, amounts("pods", "0"), amounts("pods", "0"), true},
		{"limits nothing", nil, nil, nil, nil, nil, false},
		{"as before", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), false},
		{"freed", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "0"), amounts("pods", "0"), true},
		{"limit changed", amounts("pods", "2"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), true},
		{"not counted", amounts("pods", "1", "secrets", "1"), amounts("pods", "1", "secrets", "1"), amounts("pods", "1", "secrets", "1"), amounts("pods", "1"), amounts("pods", "1", "secrets", "1"), false},
		{"no longer limited", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1", "secrets", "1"), amounts("pods", "1"), amounts("pods", "1"), true},
	} {
		found := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: test.hard}, Status: corev1.ResourceQuotaStatus{Hard: test.status, Used: test.used}}
		status, changed := recounted(found, test.sum)
		if changed != test.changed || !quota.Equal(status.Used, test.after) || !quota.Equal(status.Hard, test.hard) {
			t.Errorf("%s: %v %v", test.what, changed, status)
		}
	}
}
