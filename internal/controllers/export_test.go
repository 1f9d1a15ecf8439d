package controllers

// Accounts is for tests.
var Accounts = accounts
