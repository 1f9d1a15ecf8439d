package flowcontrol

import (
	"reflect"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func schemaWith(change func(*flowcontrolv1.FlowSchema)) *flowcontrolv1.FlowSchema {
	schema := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "level"},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:      []flowcontrolv1.Subject{{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "u"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}}},
			}},
		},
	}
	if change != nil {
		change(schema)
	}
	return schema
}

func TestFlowSchemas(t *testing.T) {
	type change = func(*flowcontrolv1.FlowSchema)
	subject := func(subject flowcontrolv1.Subject) change {
		return func(s *flowcontrolv1.FlowSchema) { s.Spec.Rules[0].Subjects[0] = subject }
	}
	resources := func(rule flowcontrolv1.ResourcePolicyRule) change {
		return func(s *flowcontrolv1.FlowSchema) { s.Spec.Rules[0].ResourceRules[0] = rule }
	}
	urls := func(urls ...string) change {
		return func(s *flowcontrolv1.FlowSchema) {
			s.Spec.Rules[0].NonResourceRules = []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"get"}, NonResourceURLs: urls}}
		}
	}
	for _, test := range []struct {
		name   string
		change change
		want   []string
	}{
		{name: "valid"},
		{name: "negative precedence", change: func(s *flowcontrolv1.FlowSchema) { s.Spec.MatchingPrecedence = -1 }, want: []string{"spec.matchingPrecedence: Invalid value: must be a positive value"}},
		{name: "large precedence", change: func(s *flowcontrolv1.FlowSchema) { s.Spec.MatchingPrecedence = 10001 }, want: []string{"spec.matchingPrecedence: Invalid value: must not be greater than 10000"}},
		{name: "precedence one", change: func(s *flowcontrolv1.FlowSchema) { s.Spec.MatchingPrecedence = 1 }, want: []string{"spec.matchingPrecedence: Invalid value: only the schema named 'exempt'"}},
		{name: "distinguisher", change: func(s *flowcontrolv1.FlowSchema) {
			s.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: "ByPhase"}
		}, want: []string{"spec.distinguisherMethod.type: Unsupported value"}},
		{name: "no level", change: func(s *flowcontrolv1.FlowSchema) { s.Spec.PriorityLevelConfiguration.Name = "" }, want: []string{"spec.priorityLevelConfiguration.name: Required value: must reference a priority level"}},
		{name: "bad level", change: func(s *flowcontrolv1.FlowSchema) { s.Spec.PriorityLevelConfiguration.Name = "A" }, want: []string{"spec.priorityLevelConfiguration.name: Invalid value"}},
		{name: "empty rules", change: func(s *flowcontrolv1.FlowSchema) {
			s.Spec.Rules[0] = flowcontrolv1.PolicyRulesWithSubjects{}
		}, want: []string{"spec.rules[0].subjects: Required value: subjects must contain", "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules"}},
		{name: "subject kind", change: subject(flowcontrolv1.Subject{Kind: "Robot"}), want: []string{"spec.rules[0].subjects[0].kind: Unsupported value"}},
		{name: "wrong member", change: subject(flowcontrolv1.Subject{Kind: "Group", User: &flowcontrolv1.UserSubject{Name: "u"}}), want: []string{
			"spec.rules[0].subjects[0].group: Required value: group is required when subject kind is 'Group'",
			"spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'"}},
		{name: "account", change: subject(flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Name: "A b"}}), want: []string{
			"spec.rules[0].subjects[0].serviceAccount.name: Invalid value",
			"spec.rules[0].subjects[0].serviceAccount.namespace: Required value: must specify namespace"}},
		{name: "nothing in rule", change: resources(flowcontrolv1.ResourcePolicyRule{}), want: []string{
			"spec.rules[0].resourceRules[0].verbs: Required value: verbs must contain at least one value",
			"spec.rules[0].resourceRules[0].apiGroups: Required value",
			"spec.rules[0].resourceRules[0].resources: Required value",
			"spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped"}},
		{name: "asterisk and more", change: resources(flowcontrolv1.ResourcePolicyRule{Verbs: []string{"*", "get"}, APIGroups: []string{"*", ""}, Resources: []string{"*", "pods"}, Namespaces: []string{"*", "x"}}), want: []string{
			"spec.rules[0].resourceRules[0].verbs: Invalid value: if '*' is present, must not specify other verbs",
			"spec.rules[0].resourceRules[0].apiGroups: Invalid value: other api groups",
			"spec.rules[0].resourceRules[0].resources: Invalid value: other resources",
			"spec.rules[0].resourceRules[0].namespaces: Invalid value: other namespaces"}},
		{name: "verb and namespace", change: resources(flowcontrolv1.ResourcePolicyRule{Verbs: []string{"eat"}, APIGroups: []string{""}, Resources: []string{"pods"}, Namespaces: []string{"A"}}), want: []string{
			"spec.rules[0].resourceRules[0].verbs: Unsupported value",
			"spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: each member of this list must be '*' or a DNS-1123 label; "}},
		{name: "good urls", change: urls("/", "/a", "/a/*")},
		{name: "urls", change: urls("", "a", "/a b", "//a", "/a*", "/*/*"), want: []string{
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: must not be empty",
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[1]: Invalid value: must start with slash",
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[2]: Invalid value: must not contain white-space",
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[3]: Invalid value: must not contain double slash",
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[4]: Invalid value: wildcard can only do suffix matching",
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[5]: Invalid value: wildcard can only do suffix matching"}},
		{name: "all urls and more", change: urls("*", "/"), want: []string{"spec.rules[0].nonResourceRules[0].nonResourceURLs: Invalid value: other non-resource URLs"}},
		{name: "fixed", change: func(s *flowcontrolv1.FlowSchema) { s.Name = "catch-all" }, want: []string{"spec: Invalid value: spec of 'catch-all' must equal the fixed value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(FlowSchema, nil, schemaWith(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestFlowSchemaStatus(t *testing.T) {
	old := schemaWith(nil)
	changed := schemaWith(func(s *flowcontrolv1.FlowSchema) {
		s.Spec.MatchingPrecedence = 5
		s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: "Dangling"}, {Type: "Dangling"}, {}}
	})
	got, errs := kindtest.UpdateSubresource(FlowSchema, "status", nil, changed, old)
	kindtest.Errors(t, errs, "status.conditions[1].type: Duplicate value", "status.conditions[2].type: Required value")
	if got.Spec.MatchingPrecedence != 1000 {
		t.Errorf("a status write changed the spec: %d", got.Spec.MatchingPrecedence)
	}
}

func levelWith(change func(*flowcontrolv1.PriorityLevelConfiguration)) *flowcontrolv1.PriorityLevelConfiguration {
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: "Limited",
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				LimitResponse: flowcontrolv1.LimitResponse{Type: "Queue", Queuing: &flowcontrolv1.QueuingConfiguration{}},
			},
		},
	}
	if change != nil {
		change(level)
	}
	return level
}

func TestPriorityLevels(t *testing.T) {
	type change = func(*flowcontrolv1.PriorityLevelConfiguration)
	queuing := func(q flowcontrolv1.QueuingConfiguration) change {
		return func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Spec.Limited.LimitResponse.Queuing = &q }
	}
	for _, test := range []struct {
		name   string
		change change
		want   []string
	}{
		{name: "valid"},
		{name: "annotation", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Annotations = map[string]string{"flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares": ""}
		}, want: []string{"metadata.annotations: Forbidden: annotation"}},
		{name: "no type", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Spec = flowcontrolv1.PriorityLevelConfigurationSpec{}
		}, want: []string{"spec.type: Required value"}},
		{name: "unknown type", change: func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Spec.Type = "Free" }, want: []string{"spec.type: Unsupported value", "spec.limited: Forbidden"}},
		{name: "exempt by another name", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Spec = flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Exempt"}
		}, want: []string{"spec.type: Invalid value: must be 'Exempt' if and only if `name` is 'exempt'"}},
		{name: "both", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Spec.Exempt = &flowcontrolv1.ExemptPriorityLevelConfiguration{}
		}, want: []string{"spec.exempt: Forbidden"}},
		{name: "limited missing", change: func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Spec.Limited = nil }, want: []string{"spec.limited: Required value"}},
		{name: "numbers", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Spec.Limited.NominalConcurrencyShares, l.Spec.Limited.LendablePercent, l.Spec.Limited.BorrowingLimitPercent = ptr.To[int32](-1), ptr.To[int32](101), ptr.To[int32](-1)
		}, want: []string{
			"spec.limited.nominalConcurrencyShares: Invalid value: must be a non-negative integer",
			"spec.limited.lendablePercent: Invalid value: must be between 0 and 100",
			"spec.limited.borrowingLimitPercent: Invalid value: if specified, must be a non-negative integer"}},
		{name: "response type", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Spec.Limited.LimitResponse = flowcontrolv1.LimitResponse{Type: "Wait"}
		}, want: []string{"spec.limited.limitResponse.type: Unsupported value"}},
		{name: "reject with queue", change: func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Spec.Limited.LimitResponse.Type = "Reject" }, want: []string{"spec.limited.limitResponse.queuing: Forbidden"}},
		{name: "queue without queue", change: func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Spec.Limited.LimitResponse.Queuing = nil }, want: []string{"spec.limited.limitResponse.queuing: Required value"}},
		{name: "negative queue", change: queuing(flowcontrolv1.QueuingConfiguration{Queues: -1, HandSize: -1, QueueLengthLimit: -1}), want: []string{
			"spec.limited.limitResponse.queuing.queues: Invalid value: must be positive",
			"spec.limited.limitResponse.queuing.handSize: Invalid value: must be positive",
			"spec.limited.limitResponse.queuing.queueLengthLimit: Invalid value: must be positive"}},
		{name: "many queues", change: queuing(flowcontrolv1.QueuingConfiguration{Queues: maxQueues + 1, HandSize: 1}), want: []string{"spec.limited.limitResponse.queuing.queues: Invalid value: must not be greater than 10000000"}},
		{name: "big hand", change: queuing(flowcontrolv1.QueuingConfiguration{Queues: 2}), want: []string{"spec.limited.limitResponse.queuing.handSize: Invalid value: should not be greater than queues (2)"}},
		{name: "entropy", change: queuing(flowcontrolv1.QueuingConfiguration{Queues: 512, HandSize: 8}), want: []string{"spec.limited.limitResponse.queuing.handSize: Invalid value: required entropy bits of deckSize 512 and handSize 8"}},
		{name: "fixed", change: func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Name = "catch-all" }, want: []string{"spec: Invalid value: spec of 'catch-all' must equal the fixed value"}},
		{name: "exempt shares", change: func(l *flowcontrolv1.PriorityLevelConfiguration) {
			l.Name = "exempt"
			l.Spec = flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Exempt", Exempt: &flowcontrolv1.ExemptPriorityLevelConfiguration{LendablePercent: ptr.To[int32](7)}}
		}},
		{name: "exempt limited", change: func(l *flowcontrolv1.PriorityLevelConfiguration) { l.Name = "exempt" }, want: []string{
			"spec.type: Invalid value", "spec: Invalid value: spec of 'exempt' except the 'spec.exempt' field must equal the fixed value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(PriorityLevelConfiguration, nil, levelWith(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestBootstrapObjectsAreValidAndOurs(t *testing.T) {
	mandatory, suggested := Mandatory(), Suggested()
	for _, schema := range append(mandatory.FlowSchemas, suggested.FlowSchemas...) {
		got, errs := kindtest.Create(FlowSchema, nil, schema)
		kindtest.Errors(t, errs)
		if !reflect.DeepEqual(got, schema) {
			t.Errorf("defaults change the flow schema %s", schema.Name)
		}
	}
	for _, level := range append(mandatory.PriorityLevels, suggested.PriorityLevels...) {
		got, errs := kindtest.Create(PriorityLevelConfiguration, nil, level)
		kindtest.Errors(t, errs)
		if !reflect.DeepEqual(got, level) {
			t.Errorf("defaults change the priority level %s", level.Name)
		}
	}
	if len(mandatory.FlowSchemas) != 2 || len(suggested.FlowSchemas) != 9 || len(suggested.PriorityLevels) != 6 {
		t.Error("bootstrap objects are missing")
	}
	mandatory.FlowSchemas[0].Spec.MatchingPrecedence = 77
	if bootstrap.MandatoryFlowSchemas[0].Spec.MatchingPrecedence == 77 {
		t.Error("the objects are shared")
	}
}

func TestRows(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	age := metav1.NewTime(now.Add(-5 * time.Second))
	schema := schemaWith(func(s *flowcontrolv1.FlowSchema) {
		s.CreationTimestamp = age
		s.Spec.MatchingPrecedence = 9
		s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: "Dangling", Status: "False"}}
	})
	if got, want := FlowSchema.Row(schema, now), []any{"mine", "level", int64(9), "<none>", "5s", "False"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	level := levelWith(func(l *flowcontrolv1.PriorityLevelConfiguration) { l.CreationTimestamp = age })
	PriorityLevelConfiguration.Default(level)
	if got, want := PriorityLevelConfiguration.Row(level, now), []any{"mine", "Limited", int32(30), int32(64), int32(8), int32(50), "5s"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	exempt := &flowcontrolv1.PriorityLevelConfiguration{Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Exempt"}}
	if got, want := PriorityLevelConfiguration.Row(exempt, now), []any{"", "Exempt", "<none>", "<none>", "<none>", "<none>", "<unknown>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
}
