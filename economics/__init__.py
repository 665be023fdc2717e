"""What failures cost a lab, and what warnings are worth: closed forms and a simulated year."""
