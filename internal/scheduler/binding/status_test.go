package binding

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/schedulertest"
)

func TestConditionPatch(t *testing.T) {
	long := metav1.NewTime(time.Unix(1000, 0).UTC())
	is := func(status corev1.ConditionStatus, reason, message string, generation int64) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: long})
		}
	}
	generation := func(n int64) schedulertest.PodOption { return func(p *corev1.Pod) { p.Generation = n } }
	to := func(node string) *string { return &node }
	const now = "2000-01-01T00:00:00Z"
	written := func(reason, message, at string, generation int) string {
		observed := ""
		if generation > 0 {
			observed = fmt.Sprintf(`"observedGeneration":%d,`, generation)
		}
		return fmt.Sprintf(`"conditions":[{"type":"PodScheduled",%s"status":"False","lastProbeTime":null,"lastTransitionTime":%q,"reason":%q,"message":%q}]`, observed, at, reason, message)
	}
	const then = "1970-01-01T00:16:40Z"
	for name, test := range map[string]struct {
		pod       []schedulertest.PodOption
		nominated *string
		want      string // of status; "" is no patch at all
	}{
		"a first condition":                     {nil, nil, written("R", "m", now, 0)},
		"with the pod's generation":             {[]schedulertest.PodOption{generation(7)}, nil, written("R", "m", now, 7)},
		"an equal condition":                    {[]schedulertest.PodOption{is("False", "R", "m", 0)}, nil, ""},
		"the same of another generation":        {[]schedulertest.PodOption{is("False", "R", "m", 3), generation(7)}, nil, ""},
		"another message":                       {[]schedulertest.PodOption{is("False", "R", "n", 0)}, nil, written("R", "m", then, 0)},
		"another reason":                        {[]schedulertest.PodOption{is("False", "S", "m", 3), generation(7)}, nil, written("R", "m", then, 7)},
		"another status":                        {[]schedulertest.PodOption{is("True", "R", "m", 0)}, nil, written("R", "m", now, 0)},
		"a condition of another type":           {[]schedulertest.PodOption{schedulertest.DisruptionTarget("False", "R")}, nil, written("R", "m", now, 0)},
		"no nomination, as before":              {[]schedulertest.PodOption{is("False", "R", "m", 0)}, to(""), ""},
		"a nomination":                          {[]schedulertest.PodOption{is("False", "R", "m", 0)}, to("a"), `"nominatedNodeName":"a"`},
		"the same nomination":                   {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, to("a"), ""},
		"another nomination":                    {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, to("b"), `"nominatedNodeName":"b"`},
		"the nomination is removed":             {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, to(""), `"nominatedNodeName":null`},
		"the nomination is not changed":         {[]schedulertest.PodOption{is("False", "R", "m", 0), schedulertest.NominatedTo("a")}, nil, ""},
		"a condition and a nomination":          {nil, to("a"), written("R", "m", now, 0) + `,"nominatedNodeName":"a"`},
		"quotes and lines are kept as they are": {[]schedulertest.PodOption{is("False", "R", "\"x\"\n<y>", 0)}, nil, written("R", "m", then, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := string(ConditionPatch(schedulertest.TestPod("p", test.pod...), corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "R", Message: "m"}, test.nominated))
				want := ""
				if test.want != "" {
					want = `{"metadata":{"uid":"p"},"status":{` + test.want + `}}`
				}
				if !sameJSON(got, want) {
					t.Errorf("patch %s\nwant %s", got, want)
				}
			})
		})
	}
}

func sameJSON(a, b string) bool {
	if a == "" || b == "" {
		return a == b
	}
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	one, _ := json.Marshal(x)
	other, _ := json.Marshal(y)
	return string(one) == string(other)
}
