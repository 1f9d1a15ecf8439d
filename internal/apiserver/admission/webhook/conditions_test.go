package webhook

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestMatchConditions: a webhook is called if all its conditions are true. failurePolicy decides about conditions that cannot be evaluated.
func TestMatchConditions(t *testing.T) {
	for name, test := range map[string]struct {
		expressions []string
		want        string
		err         string
	}{
		"true":                  {[]string{"object.data.a == '1'", "request.operation == 'CREATE'", "oldObject == null"}, "a", ""},
		"false":                 {[]string{"object.data.a == '1'", "request.name == 'other'"}, "", ""},
		"authorizer":            {[]string{"authorizer.group('').resource('pods').check('create').allowed()"}, "a", ""},
		"an error":              {[]string{"object.data.nothing == '1'"}, "", "no such key: nothing"},
		"false beats the error": {[]string{"object.data.nothing == '1'", "false"}, "", ""},
	} {
		for _, open := range []bool{false, true} {
			h, w := newHooks(t), &world{}
			w.set(validating("c", h.hook("a", allow, func(d *definition) {
				for _, text := range test.expressions {
					d.MatchConditions = append(d.MatchConditions, admissionregistrationv1.MatchCondition{Name: "c", Expression: text})
				}
				if open {
					failOpen(d)
				}
			})))
			p := NewValidating(newOptions(w))
			err := try(t.Context(), p, writing().Attributes)
			want := test.err
			if open {
				want = ""
			}
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || statusCode(err) != 403) || h.calls() != test.want {
				t.Errorf("%s, open %t: %v, want %q", name, open, err, want)
			}
			if n := testutil.CollectAndCount(p.ConditionMetrics, "apiserver_admission_match_condition_evaluation_seconds"); n != 1 {
				t.Errorf("%s: %d evaluations counted", name, n)
			}
		}
	}
}
