package main

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "skiff/test/operator/api/v1"
)

const maxReplicas = 3

// defaulter is the mutating webhook.
type defaulter struct{}

func (defaulter) Default(_ context.Context, website *v1.Website) error {
	if website.Spec.Replicas == nil {
		website.Spec.Replicas = new(int32(1))
	}
	return nil
}

// validator is the validating webhook.
type validator struct{}

func (validator) ValidateCreate(_ context.Context, website *v1.Website) (admission.Warnings, error) {
	return validate(website, nil)
}

func (validator) ValidateUpdate(_ context.Context, old, website *v1.Website) (admission.Warnings, error) {
	return validate(website, old)
}

func (validator) ValidateDelete(context.Context, *v1.Website) (admission.Warnings, error) {
	return nil, nil
}

// validate returns an error without or with the field that is invalid: API servers report them differently.
func validate(website, old *v1.Website) (warnings admission.Warnings, err error) {
	if website.Spec.Page.Text == "" {
		warnings = append(warnings, "spec.page.text is empty")
	}
	if old != nil && old.Spec.Page.Title != website.Spec.Page.Title {
		return warnings, errors.New("the title of a website cannot be changed")
	}
	if replicas := website.Spec.Replicas; replicas != nil && *replicas > maxReplicas {
		invalid := field.Invalid(field.NewPath("spec", "replicas"), *replicas, fmt.Sprintf("a website has at most %d replicas", maxReplicas))
		return warnings, apierrors.NewInvalid(v1.GroupVersion.WithKind("Website").GroupKind(), website.Name, field.ErrorList{invalid})
	}
	return warnings, nil
}
