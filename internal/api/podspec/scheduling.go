package podspec

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	required  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferred = "preferredDuringSchedulingIgnoredDuringExecution"
)

func (j *judge) affinity(path *field.Path) {
	affinity := j.spec.Affinity
	if affinity == nil {
		return
	}
	if node := affinity.NodeAffinity; node != nil {
		path := path.Child("nodeAffinity")
		if node.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			j.nodeSelector(node.RequiredDuringSchedulingIgnoredDuringExecution, path.Child(required))
		}
		for i, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			path := path.Child(preferred).Index(i)
			j.weight(term.Weight, path.Child("weight"))
			j.nodeSelectorTerm(&term.Preference, true, path.Child("preference"))
		}
	}
	if pods := affinity.PodAffinity; pods != nil {
		j.podAffinity(pods.RequiredDuringSchedulingIgnoredDuringExecution, pods.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))
	}
	if pods := affinity.PodAntiAffinity; pods != nil {
		j.podAffinity(pods.RequiredDuringSchedulingIgnoredDuringExecution, pods.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))
	}
}

func (j *judge) weight(weight int32, path *field.Path) {
	if weight <= 0 || weight > 100 {
		j.invalid(path, weight, "must be in the range 1-100")
	}
}

// ValidateNodeSelector judges a selector of nodes, wherever it stands. allowInvalidValues tolerates values that no
// label can have.
func ValidateNodeSelector(selector *corev1.NodeSelector, allowInvalidValues bool, path *field.Path) field.ErrorList {
	j := &judge{allow: allowances{nodeAffinityValues: allowInvalidValues}}
	j.nodeSelector(selector, path)
	return j.errs
}

func (j *judge) nodeSelector(selector *corev1.NodeSelector, path *field.Path) {
	path = path.Child("nodeSelectorTerms")
	if len(selector.NodeSelectorTerms) == 0 {
		j.required(path, "must have at least one node selector term")
	}
	for i := range selector.NodeSelectorTerms {
		j.nodeSelectorTerm(&selector.NodeSelectorTerms[i], j.allow.nodeAffinityValues, path.Index(i))
	}
}

func (j *judge) nodeSelectorTerm(term *corev1.NodeSelectorTerm, allowInvalidValues bool, path *field.Path) {
	for i, requirement := range term.MatchExpressions {
		j.nodeLabel(requirement, allowInvalidValues, path.Child("matchExpressions").Index(i))
	}
	for i, requirement := range term.MatchFields {
		j.nodeField(requirement, path.Child("matchFields").Index(i))
	}
}

func (j *judge) nodeLabel(r corev1.NodeSelectorRequirement, allowInvalidValues bool, path *field.Path) {
	values := path.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			j.required(values, "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			j.forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			j.required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		j.invalid(path.Child("operator"), r.Operator, "not a valid selector operator")
	}
	j.labelName(path.Child("key"), r.Key)
	if !allowInvalidValues {
		for i, value := range r.Values {
			j.messages(values.Index(i), value, utilvalidation.IsValidLabelValue(value))
		}
	}
}

// nodeField judges a selection by a field of the node; its name is the only one.
func (j *judge) nodeField(r corev1.NodeSelectorRequirement, path *field.Path) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			j.required(path.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		j.invalid(path.Child("operator"), r.Operator, "not a valid selector operator")
	}
	if r.Key != metav1.ObjectNameField {
		j.invalid(path.Child("key"), r.Key, "not a valid field selector key")
		return
	}
	for i, value := range r.Values {
		j.subdomain(path.Child("values").Index(i), value)
	}
}

func (j *judge) podAffinity(must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm, path *field.Path) {
	for i := range must {
		j.podAffinityTerm(&must[i], path.Child(required).Index(i))
	}
	for i := range should {
		path := path.Child(preferred).Index(i)
		j.weight(should[i].Weight, path.Child("weight"))
		j.podAffinityTerm(&should[i].PodAffinityTerm, path.Child("podAffinityTerm"))
	}
}

func (j *judge) podAffinityTerm(term *corev1.PodAffinityTerm, path *field.Path) {
	j.affinitySelectors(term, j.allow.affinityValues, path)
	for _, name := range term.Namespaces {
		j.messages(path.Child("namespace"), name, validation.ValidateNamespaceName(name, false))
	}
	j.labelKeys(term.MatchLabelKeys, term.MismatchLabelKeys, term.LabelSelector, path)
	if term.TopologyKey == "" {
		j.required(path.Child("topologyKey"), "can not be empty")
	}
	j.labelName(path.Child("topologyKey"), term.TopologyKey)
}

func (j *judge) affinitySelectors(term *corev1.PodAffinityTerm, allowInvalidValues bool, path *field.Path) {
	j.selector(path.Child("labelSelector"), term.LabelSelector, allowInvalidValues)
	j.selector(path.Child("namespaceSelector"), term.NamespaceSelector, allowInvalidValues)
}

// labelKeys judges keys whose values come from the pod's own labels and join the selector.
func (j *judge) labelKeys(match, mismatch []string, selector *metav1.LabelSelector, path *field.Path) {
	for _, list := range []struct {
		name string
		keys []string
	}{{"matchLabelKeys", match}, {"mismatchLabelKeys", mismatch}} {
		path := path.Child(list.name)
		if len(list.keys) > 0 && selector == nil {
			j.forbidden(path, "must not be specified when labelSelector is not set")
			continue
		}
		for i, key := range list.keys {
			j.labelName(path.Index(i), key)
		}
	}
	if selector != nil {
		// A key may stand in the selector once: that is where it was merged when the pod was made.
		index := make(map[string]int, len(match))
		for i, key := range match {
			index[key] = i
		}
		used := sets.KeySet(selector.MatchLabels)
		for _, expression := range selector.MatchExpressions {
			if i, ok := index[expression.Key]; ok && used.Has(expression.Key) {
				j.invalid(path.Index(i), expression.Key, "exists in both matchLabelKeys and labelSelector")
			}
			used.Insert(expression.Key)
		}
	}
	others := sets.New(mismatch...)
	for i, key := range match {
		if others.Has(key) {
			j.invalid(path.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

// unmergedLabelKeys is the older rule: the selector must not hold the keys at all. It is judged where the stored
// object breaks the newer one.
func (j *judge) unmergedLabelKeys(keys []string, selector *metav1.LabelSelector, path *field.Path) {
	if len(keys) == 0 {
		return
	}
	used := sets.New[string]()
	if selector == nil {
		j.forbidden(path, "must not be specified when labelSelector is not set")
	} else {
		used = sets.KeySet(selector.MatchLabels)
		for _, expression := range selector.MatchExpressions {
			used.Insert(expression.Key)
		}
	}
	for i, key := range keys {
		j.labelName(path.Index(i), key)
		if used.Has(key) {
			j.invalid(path.Index(i), key, "exists in both matchLabelKeys and labelSelector")
		}
	}
}

func (j *judge) topologySpread(path *field.Path) {
	constraints := j.spec.TopologySpreadConstraints
	for i := range constraints {
		c, path := &constraints[i], path.Index(i)
		j.positive(path.Child("maxSkew"), c.MaxSkew)
		if c.TopologyKey == "" {
			j.required(path.Child("topologyKey"), "can not be empty")
		}
		oneOf(j, path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		for _, later := range constraints[i+1:] {
			if c.TopologyKey == later.TopologyKey && c.WhenUnsatisfiable == later.WhenUnsatisfiable {
				j.duplicate(path.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable))
				break
			}
		}
		if c.MinDomains != nil {
			j.positive(path.Child("minDomains"), *c.MinDomains)
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				j.invalid(path.Child("minDomains"), *c.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, c.WhenUnsatisfiable))
			}
		}
		optionalOneOf(j, path.Child("nodeAffinityPolicy"), c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		optionalOneOf(j, path.Child("nodeTaintsPolicy"), c.NodeTaintsPolicy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		if j.allow.spreadLabelKeys {
			j.unmergedLabelKeys(c.MatchLabelKeys, c.LabelSelector, path.Child("matchLabelKeys"))
		} else {
			j.labelKeys(c.MatchLabelKeys, nil, c.LabelSelector, path)
		}
		if !j.allow.spreadSelector {
			j.selector(path.Child("labelSelector"), c.LabelSelector, false)
		}
	}
}

func (j *judge) positive(path *field.Path, value int32) {
	if value <= 0 {
		j.invalid(path, value, "must be greater than zero")
	}
}

// ValidateTolerations judges tolerations, wherever they stand.
func ValidateTolerations(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	j := &judge{}
	j.tolerations(tolerations, path)
	return j.errs
}

func (j *judge) tolerations(tolerations []corev1.Toleration, path *field.Path) {
	for i, t := range tolerations {
		path := path.Index(i)
		if t.Key != "" {
			j.labelName(path.Child("key"), t.Key)
		} else if t.Operator != corev1.TolerationOpExists {
			j.invalid(path.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			j.invalid(path.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		j.tolerationValue(&t, path)
		if t.Effect != "" {
			oneOf(j, path.Child("effect"), t.Effect,
				corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
		}
	}
}

func (j *judge) tolerationValue(t *corev1.Toleration, path *field.Path) {
	operator := path.Child("operator")
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if texts := utilvalidation.IsValidLabelValue(t.Value); len(texts) > 0 {
			j.invalid(operator, t.Value, strings.Join(texts, ";"))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			j.invalid(operator, t.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		if !j.allow.comparingTolerations {
			j.add(field.NotSupported(operator, t.Operator, []corev1.TolerationOperator{
				corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt}))
			return
		}
		j.messages(path.Child("value"), t.Value, content.IsDecimalInteger(t.Value))
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			j.invalid(path.Child("value"), t.Value, err.Error())
		}
	default:
		oneOf(j, operator, t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists)
	}
}

func (j *judge) schedulingGates(path *field.Path) {
	seen := sets.New[string]()
	for i, gate := range j.spec.SchedulingGates {
		j.qualifiedName(path.Index(i), gate.Name)
		if seen.Has(gate.Name) {
			j.duplicate(path.Index(i), gate.Name)
		}
		seen.Insert(gate.Name)
	}
}
